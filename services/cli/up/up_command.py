"""`fastserve up`: every service on this machine, each as its own process.

Flags go to the services that own them (up_settings). Links between the services use ports of the loopback interface
that were free at the start.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from services.cli.up.rest_front import FRONT, REST, front_command
from services.cli.up.service_process import ServiceAddresses, ServiceCommand
from services.cli.up.supervisor import supervise
from services.cli.up.up_log import TEXT_LOG, UpLog
from services.cli.up.up_settings import SERVICES, UpOnlySettings, UpSettings, names, passed_on, resolved
from services.cli.up.worker_groups import WORKER, worker_flags
from services.domain.errors import AddressInUseError, FastServeError, InvalidFieldError
from services.gateway.settings import GatewaySettings
from services.loadgen.gateway_client import GatewayClient
from services.runtime.command_line import CommandError, ExitCode
from services.runtime.core_turns import wake_patiently
from services.runtime.model_files import BUNDLED_MODEL, MOST_NAME_CHARACTERS
from services.runtime.process import die_with_parent, write_ready_file
from services.runtime.server import probe_listening
from services.runtime.settings import ENVIRONMENT_PREFIX, join_address, parse_flags, resolve
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings

READY_POLL_S = 0.05
STOP_MARGIN_S = 15.0
"""Time a service may take to end after its drain."""

_LINK_HOST = "127.0.0.1"


def _listen(known: Mapping[str, ServiceAddresses], name: str) -> list[str]:
    """The addresses of a service that only its peers dial: free ports at first, the same ones after a restart."""
    own = known.get(name)
    return ["--listen", own.grpc if own else f"{_LINK_HOST}:0", *_metrics_port(known, name)]


def _metrics_port(known: Mapping[str, ServiceAddresses], name: str) -> list[str]:
    own = known.get(name)
    return ["--metrics-port", _port(own.metrics) if own else "0"]


def _port(address: str | None) -> str:
    return "0" if address is None else address.rpartition(":")[2]


def service_commands(
    flags: Mapping[str, Sequence[str]],
    environ: Mapping[str, str],
    http_port: int = 0,
    front: Path = FRONT,
    log: UpLog = TEXT_LOG,
) -> list[ServiceCommand]:
    """The services with their own flags, in the order in which they start; the one that ends first comes last. The REST
    front is left out, with a line in the log, if its program is not there.

    Raises InvalidFieldError for an invalid setting in a service's own table or environment.
    """
    scheduler_drain_s = resolved(SchedulerSettings, "scheduler", flags["scheduler"], environ).drain_limit
    gateway_settings = resolved(GatewaySettings, "gateway", flags["gateway"], environ)
    gateway_drain_s = gateway_settings.drain_limit
    worker_drain_s = resolved(WorkerSettings, WORKER, flags[WORKER], environ).drain_limit
    stop_limit_s = gateway_drain_s + STOP_MARGIN_S
    public_tls = gateway_settings.public_tls
    rest = front_command(
        front, gateway_settings.host, http_port, gateway_drain_s, stop_limit_s, log.log_format, public_tls
    )
    if rest is None:
        log.say(f"no REST front: {front} is not there (`make install` builds it, with Go); serving gRPC alone")

    def command(name: str, *links: str) -> list[str]:
        return [sys.executable, "-m", f"services.{name}", *flags[name], *links]

    def kvmanager(known: Mapping[str, ServiceAddresses]) -> list[str]:
        return command("kvmanager", *_listen(known, "kvmanager"))

    def scheduler(known: Mapping[str, ServiceAddresses]) -> list[str]:
        return command("scheduler", "--kv-manager", known["kvmanager"].grpc, *_listen(known, "scheduler"))

    def worker(known: Mapping[str, ServiceAddresses], name: str, own: Sequence[str]) -> list[str]:
        links = ["--scheduler", known["scheduler"].grpc, "--kv-manager", known["kvmanager"].grpc]
        return command(WORKER, *links, "--health-listen", f"{_LINK_HOST}:0", *_metrics_port(known, name), *own)

    def gateway(known: Mapping[str, ServiceAddresses]) -> list[str]:
        own = known.get("gateway")
        ports = ["--grpc-port", _port(own.grpc), "--metrics-port", _port(own.metrics)] if own else []
        # By which `up` sees that it is ready, whatever name its certificate has.
        probe = [] if public_tls is None else ["--probe-listen", f"{_LINK_HOST}:0"]
        return command("gateway", "--scheduler", known["scheduler"].grpc, *ports, *probe)

    workers = [
        ServiceCommand(
            name, partial(worker, name=name, own=own), ("scheduler",), stop_limit_s=worker_drain_s + STOP_MARGIN_S
        )
        for name, own in worker_flags(flags, environ).items()
    ]
    return [
        ServiceCommand("kvmanager", kvmanager),
        ServiceCommand("scheduler", scheduler, ("kvmanager",), stop_limit_s=scheduler_drain_s + STOP_MARGIN_S),
        *workers,
        ServiceCommand("gateway", gateway, after=("scheduler",), stop_limit_s=stop_limit_s),
        *([] if rest is None else [rest]),
    ]


def check_public_ports(host: str, ports: Mapping[str, int]) -> None:
    """Refuses ports that are taken, or given twice, before anything starts: a service that can't have its port is seen
    only when those before it are up. `ports` are by flag; 0 is any free one.

    Raises AddressInUseError that names the flag.
    """
    with ExitStack() as probes:
        for flag, port in ports.items():
            if port == 0:
                continue
            try:
                probes.enter_context(probe_listening(join_address(host, port)))
            except AddressInUseError as error:
                raise AddressInUseError(f"{flag}: {error}") from None


async def gateway_serves(addresses: Mapping[str, ServiceAddresses]) -> None:
    """Waits until the gateway accepts requests, that is, until a worker has joined."""
    gateway = addresses["gateway"]
    async with GatewayClient(gateway.probe or gateway.grpc) as client:
        while not await client.ready():  # noqa: ASYNC110 (the event is in another process)
            await asyncio.sleep(READY_POLL_S)


def flags_of_services(
    settings: UpOnlySettings, environ: Mapping[str, str], config: Path | None
) -> dict[str, list[str]]:
    """The command line of each service, without its links. The bundled model is the default where nothing names
    a model; the KV manager, which reads no model, gets the model's name.
    """
    flags: dict[str, list[str]] = {}
    for service, its_settings in SERVICES.items():
        flags[service] = passed_on(settings, service)
        if config is not None:
            flags[service] += ["--config", str(config)]
        takes_model = "model" in its_settings.model_fields
        if takes_model and settings.model is None and not names("model", service, environ, config):
            flags[service] += ["--model", str(BUNDLED_MODEL)]
    if settings.served_model_name is None and not names("served_model_name", "kvmanager", environ, config):
        name = resolved(GatewaySettings, "gateway", flags["gateway"], environ).model_name
        flags["kvmanager"] += ["--served-model-name", name[:MOST_NAME_CHARACTERS]]
    return flags


def write_targets(path: Path, addresses: Mapping[str, ServiceAddresses]) -> None:
    """Writes where each service's /metrics is, for Prometheus. Ranks that don't lead have none.

    Raises InvalidFieldError if the file can't be written.
    """
    targets = [
        {"targets": [one.metrics], "labels": {"service": name}}
        for name, one in addresses.items()
        if one.metrics is not None
    ]
    try:
        path.write_text(json.dumps(targets, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidFieldError("--targets-file", f"can't write {path}: {error.strerror}") from None


def _announcer(settings: UpOnlySettings) -> Callable[[Mapping[str, ServiceAddresses]], None]:
    ready_file = settings.ready_file

    def announce(addresses: Mapping[str, ServiceAddresses]) -> None:
        gateway = addresses["gateway"]
        http = addresses[REST].http if REST in addresses else None
        shown = f"grpc={gateway.grpc} http={http}" if http else f"grpc={gateway.grpc}"
        if settings.targets_file is not None:
            write_targets(settings.targets_file, addresses)
        print(f"ready {shown} metrics={gateway.metrics}", flush=True)
        if ready_file is not None:
            write_ready_file(ready_file, gateway.grpc, gateway.metrics, http)

    return announce


def run(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Runs the services until a signal. Raises FastServeError or CommandError if they can't come up."""
    given = parse_flags(UpSettings, argv, prog="fastserve up")
    settings = resolve(UpSettings, "up", given, environ)
    if settings.die_with_parent is not None:
        die_with_parent(settings.die_with_parent)
    named = given.get("config") or environ.get(ENVIRONMENT_PREFIX + "CONFIG")
    flags = flags_of_services(settings, environ, Path(named) if named else None)
    log = UpLog(settings.log_format)
    commands = service_commands(flags, environ, settings.http_port, log=log)
    gateway = resolved(GatewaySettings, "gateway", flags["gateway"], environ)
    ports = {"--grpc-port": gateway.grpc_port, "--metrics-port": gateway.metrics_port}
    if any(command.name == REST for command in commands):
        ports["--http-port"] = settings.http_port
    check_public_ports(gateway.host, ports)
    with tempfile.TemporaryDirectory(prefix="fastserve-") as scratch:
        state_dir = settings.state_dir or Path(scratch)
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"--state-dir: can't create {state_dir}: {error.strerror}") from error
        wake_patiently()  # the services inherit it, all but the worker's compute
        asyncio.run(supervise(commands, state_dir, gateway_serves, _announcer(settings), log))


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        run(sys.argv[1:] if argv is None else argv, os.environ)
    except FastServeError as error:
        raise CommandError(str(error)) from error
    return ExitCode.OK
