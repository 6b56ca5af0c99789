"""The REST front among the services of `fastserve up`: a Go program, which `make install` builds."""

from collections.abc import Mapping
from pathlib import Path

from services.cli.up.service_process import ServiceAddresses, ServiceCommand
from services.runtime.logs import LogFormat
from services.runtime.settings import join_address
from services.runtime.tls.tls_files import TlsFiles

FRONT = Path(__file__).resolve().parents[3] / "build" / "rest" / "fastserve-rest"
"""Part of the source tree, but not of a wheel."""
REST = "rest"


def front_command(
    program: Path,
    host: str,
    port: int,
    drain_limit_s: float,
    stop_limit_s: float,
    log_format: LogFormat = "human",
    tls: TlsFiles | None = None,
) -> ServiceCommand | None:
    """How to run the front beside the gateway; None if the program is not there. `tls`: the gateway's certificate for
    clients, which the front shows its own, and by which it knows the gateway.
    """
    if not program.is_file():
        return None

    def build(known: Mapping[str, ServiceAddresses]) -> list[str]:
        own, gateway = known.get(REST), known["gateway"]
        listen = own.http if own is not None and own.http is not None else join_address(host, port)
        argv = [str(program), "--listen", listen, "--gateway", gateway.grpc, "--drain-limit", f"{drain_limit_s:g}s"]
        if log_format != "human":
            argv += ["--log-format", log_format]
        if tls is not None:
            argv += ["--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--gateway-cert", str(tls.cert)]
        return [*argv, "--gateway-metrics", gateway.metrics] if gateway.metrics else argv

    return ServiceCommand(REST, build, after=("gateway",), stop_limit_s=stop_limit_s)
