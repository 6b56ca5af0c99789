"""A real FastServe of four processes on free ports of the loopback interface, whose scheduler and KV manager can be
restarted with other policies.

The worker is started once (loading the model and measuring its cost take seconds); when the KV manager and the
scheduler are replaced on the same ports it begins a new epoch, and the gateway dials again, as they would in a cluster.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc
from tests.builders.forked_modules import ForkedModule
from tests.builders.repository_paths import ROOT
from tests.builders.waits import wait_until

STOP_LIMIT_S = 60.0
OURS = ("services.", "tests.")
"""These are forked; torchrun is not."""

FIRST_PORT = 16_000
PORTS_OF_A_TEST_PROCESS = 2000


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago. The system hands out higher ones by itself, and
    another test process takes others: so nobody gets it while a service is started, or started again.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = FIRST_PORT + PORTS_OF_A_TEST_PROCESS * number + random.randrange(PORTS_OF_A_TEST_PROCESS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """One service. Its stderr goes to a file, shown when it does not come up. `module`: what to run in its place;
    `variables`: of its environment.
    """

    popen: "subprocess.Popen[bytes] | ForkedModule"

    def __init__(
        self,
        service: str,
        arguments: Sequence[str],
        folder: Path,
        instance: int,
        module: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = service
        self.arguments = tuple(arguments)
        self._sent: set[signal.Signals] = set()
        module = module or (f"services.{service}",)
        self.ready_file = folder / f"{service}-{instance}.json"
        self.log_path = folder / f"{service}-{instance}.log"
        command = (*module, *arguments, "--ready-file", str(self.ready_file))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
        if module[0].startswith(OURS):
            self.popen = ForkedModule(command, self.log_path, environment)
            return
        with self.log_path.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *command], stderr=log, stdout=log, env=environment, cwd=ROOT
            )

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_ready(self) -> dict[str, str]:
        wait_until(lambda: self.ready_file.exists() or self.popen.poll() is not None, f"{self.name} ready")
        assert self.popen.poll() is None, f"{self.name} ended with {self.popen.returncode}:\n{self.log()}"
        addresses: dict[str, str] = json.loads(self.ready_file.read_text())
        return addresses

    def ask_to_stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Sends the signal once, however often it is asked for."""
        if how not in self._sent and self.popen.poll() is None:
            self._sent.add(how)
            self.popen.send_signal(how)

    @property
    def has_ended_by_itself(self) -> bool:
        return self.popen.poll() is not None and not self._sent

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.ask_to_stop(how)
        try:
            return self.popen.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait(STOP_LIMIT_S)


class Cluster:
    """Gateway, scheduler, KV manager and worker of one model. The `observed` ones write traces."""

    def __init__(
        self, model: Path, folder: Path, worker_flags: Sequence[str] = (), *, observed: Sequence[str] = ()
    ) -> None:
        self.model = model
        self.folder = folder
        self.scheduler_address = f"127.0.0.1:{free_port()}"
        self.kvmanager_address = f"127.0.0.1:{free_port()}"
        self.worker_flags = tuple(worker_flags)
        self.processes: dict[str, Process] = {}
        self._observed = tuple(observed)
        self._started = 0
        self._all: list[Process] = []

    def trace_of(self, service: str) -> Path:
        """Where an observed service writes."""
        return self.folder / f"{service}.trace"

    def _observing(self, service: str) -> tuple[str, ...]:
        """The module that runs and observes the service; nothing if it is not to be observed."""
        return ("tests.e2e.observed", service, str(self.trace_of(service))) if service in self._observed else ()

    def start(self, service: str, *arguments: str) -> Process:
        self._started += 1
        process = Process(service, arguments, self.folder, self._started, self._observing(service))
        self.processes[service] = process
        self._all.append(process)
        return process

    def restart(self, service: str) -> Process:
        """Starts a service again, with the arguments of its last process."""
        return self.start(service, *self.processes[service].arguments)

    def start_worker(self) -> Process:
        self.processes["worker"] = self.start_other_worker("--model", str(self.model))
        return self.processes["worker"]

    def start_other_worker(
        self, *flags: str, module: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> Process:
        """A worker that is none of the cluster's services. `module`, `variables`: as of Process."""
        self._started += 1
        peers = ("--scheduler", self.scheduler_address, "--kv-manager", self.kvmanager_address, "--metrics-port", "0")
        model = () if "--model" in flags else ("--model", str(self.model))
        arguments = (*model, *peers, *self.worker_flags, *flags)
        module = module or self._observing("worker")
        process = Process("worker", arguments, self.folder, self._started, module, variables)
        self._all.append(process)
        return process

    def start_gateway(self) -> str:
        process = self.start(
            "gateway", "--model", str(self.model), "--scheduler", self.scheduler_address,
            "--served-model-name", "tiny", "--grpc-port", "0", "--metrics-port", "0",
        )  # fmt: skip
        addresses = process.wait_ready()
        self.gateway_address = addresses["grpc"]
        self.metrics_address = addresses["metrics"]
        return self.gateway_address

    def set_policies(
        self, policy: str, kv_policy: str, scheduler_flags: Sequence[str] = (), kv_flags: Sequence[str] = ()
    ) -> None:
        """(Re)starts scheduler and KV manager with these policies, and waits until the worker has joined them."""
        old = [self.processes[service] for service in ("scheduler", "kvmanager") if service in self.processes]
        for process in old:
            process.ask_to_stop()
        for process in old:
            process.stop()
        self.start(
            "kvmanager", "--listen", self.kvmanager_address, "--metrics-port", "0", "--kv-policy", kv_policy, *kv_flags
        )
        self.start(
            "scheduler", "--listen", self.scheduler_address, "--kv-manager", self.kvmanager_address,
            "--model", str(self.model), "--metrics-port", "0", "--policy", policy, *scheduler_flags,
        )  # fmt: skip
        self.processes["kvmanager"].wait_ready()
        self.processes["scheduler"].wait_ready()

    def status(self) -> admin_pb2.Status:
        with grpc.insecure_channel(self.gateway_address) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            return stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=60).status

    def is_serving(self) -> bool:
        """The gateway says that it takes requests."""
        with grpc.insecure_channel(self.gateway_address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            health = stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=60)
        return bool(health.status == health_pb2.HealthCheckResponse.SERVING)

    def is_ready(self) -> bool:
        """The gateway says that it serves, and the scheduler that its group does."""
        try:
            groups = self.status().groups
            return bool(groups) and groups[0].ready and self.is_serving()
        except grpc.RpcError:
            return False

    def is_group_ready(self, number: int = 0) -> bool:
        """The group has a worker that serves."""
        return any(group.group == number and group.ready for group in self.status().groups)

    def wait_ready(self) -> None:
        def ready_or_dead() -> bool:
            dead = [process for process in self.processes.values() if process.popen.poll() is not None]
            assert not dead, f"{dead[0].name} ended:\n{dead[0].log()}"
            return self.is_ready()

        wait_until(ready_or_dead, "worker joined")

    def is_idle(self) -> bool:
        """No job anywhere, every block of both pools free."""
        group = self.status().groups[0]
        return (
            group.running + group.waiting + group.swapped_out == 0
            and group.device_blocks_free == group.device_blocks_total
            and group.host_blocks_free == group.host_blocks_total
        )

    def stop(self) -> None:
        """Fails if a service has ended by itself."""
        gone = [process for process in self.processes.values() if process.has_ended_by_itself]
        for process in self._all:
            process.ask_to_stop()
        for process in self._all:
            process.stop()
        assert not gone, "\n".join(f"{one.name} ended with {one.popen.returncode}:\n{one.log()}" for one in gone)


@contextmanager
def running_cluster(
    model: Path,
    folder: Path,
    policy: str = "skip-join-mlfq",
    kv_policy: str = "proactive",
    worker_flags: Sequence[str] = (),
    scheduler_flags: Sequence[str] = (),
    *,
    observed: Sequence[str] = (),
) -> Iterator[Cluster]:
    """All four services, ready to serve; stopped at the end."""
    cluster = Cluster(model, folder, worker_flags, observed=observed)
    try:
        cluster.set_policies(policy, kv_policy, scheduler_flags)
        cluster.start_worker()
        cluster.start_gateway()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
