"""The lives of one container: started, asked by its probes, started again after it ended."""

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.kubernetes.standin.api_objects import Manifest, utc_now
from tests.kubernetes.standin.cri_stubs import Cri
from tests.kubernetes.standin.pod_config import NotThereError, PodConfig

FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 8.0
"""Between two lives. A kubelet waits 10 s and more; a test has less time."""
MESSAGE_CHARACTERS = 2048
PROBES = ("startup", "liveness", "readiness")


class Phase(Enum):
    WAITING = auto()
    RUNNING = auto()


@dataclass
class ProbeState:
    """When to ask next, and how often it failed in a row."""

    due_s: float
    failures: int = 0


@dataclass
class ContainerLife:
    """`step` brings it forward, from one thread; `tell` is called when what `status` says has changed."""

    runtime: Any
    config: PodConfig
    sandbox_id: str
    spec: Manifest
    grace_s: int
    tell: Callable[[], None]
    log: Callable[[str], None]
    phase: Phase = Phase.WAITING
    restarts: int = 0
    is_ready: bool = False
    container_id: str = ""
    began_s: float = 0.0
    _is_started: bool = False
    _pause_s: float = FIRST_PAUSE_S
    _next_start_s: float = 0.0
    _waits_for: str = "ContainerCreating"
    _message: str = ""
    _last: Manifest | None = None
    _probes: dict[str, ProbeState] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    def status(self) -> Manifest:
        """As in a pod's status."""
        image = self.spec["image"]
        if self.phase is Phase.RUNNING:
            state: Manifest = {"running": {"startedAt": utc_now()}}
        else:
            state = {"waiting": {"reason": self._waits_for, "message": self._message}}
        told = {
            "name": self.name,
            "image": image,
            "imageID": image,
            "ready": self.is_ready,
            "started": self._is_started,
        }
        told["containerID"] = f"containerd://{self.container_id}" if self.container_id else ""
        told |= {"restartCount": self.restarts, "state": state, "lastState": {}}
        if self._last is not None:
            told["lastState"] = {"terminated": self._last}
        return told

    def step(self) -> None:
        """One look."""
        now_s = time.monotonic()
        if self.phase is Phase.WAITING:
            if now_s >= self._next_start_s:
                self._start(now_s)
            return
        found = self.runtime.ContainerStatus(Cri.ContainerStatusRequest(container_id=self.container_id)).status
        if found.state == Cri.CONTAINER_EXITED:
            self._ended(found, now_s)
        else:
            self._probe(now_s)

    def stop(self, limit_s: int) -> int:
        """End it as a kubelet does, with its preStop first; its exit code."""
        if self.phase is not Phase.RUNNING:
            return 0
        wait_s = min(self.spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0), limit_s)
        time.sleep(wait_s)
        request = Cri.StopContainerRequest(container_id=self.container_id, timeout=max(1, limit_s - wait_s))
        self.runtime.StopContainer(request)
        found = self.runtime.ContainerStatus(Cri.ContainerStatusRequest(container_id=self.container_id)).status
        return int(found.exit_code)

    def _start(self, now_s: float) -> None:
        try:
            config = self.config.container(self.spec, self.restarts)
            self.container_id = self.runtime.CreateContainer(
                Cri.CreateContainerRequest(
                    pod_sandbox_id=self.sandbox_id, config=config, sandbox_config=self.config.sandbox()
                )
            ).container_id
            self.runtime.StartContainer(Cri.StartContainerRequest(container_id=self.container_id))
        except (NotThereError, grpc.RpcError) as error:
            message = str(error.details() if isinstance(error, grpc.RpcError) else error)[:300]
            if message != self._message:
                self._waits_for, self._message = "CreateContainerError", message
                self.log(f"{self.name}: {message}")
                self.tell()
            self._next_start_s = now_s + 1.0
            return
        self.phase, self.began_s = Phase.RUNNING, now_s
        self._is_started = "startupProbe" not in self.spec
        self.is_ready = self._is_started and "readinessProbe" not in self.spec
        asked = [name for name in PROBES if f"{name}Probe" in self.spec]
        delays = {name: self.spec[f"{name}Probe"].get("initialDelaySeconds", 0) for name in asked}
        self._probes = {name: ProbeState(now_s + delays[name]) for name in asked}
        self.tell()

    def _ended(self, found: Any, now_s: float) -> None:
        self.phase, self.is_ready, self._is_started = Phase.WAITING, False, False
        log = self.config.logs / f"{self.name}.{self.restarts}.log"
        failed = {"message": log_text(log)[-MESSAGE_CHARACTERS:]} if found.exit_code else {}
        self._last = {"exitCode": found.exit_code, "reason": found.reason, "finishedAt": utc_now(), **failed}
        self.restarts += 1
        self._waits_for, self._message = "CrashLoopBackOff", "waits before it is started again"
        self._next_start_s, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, MOST_PAUSE_S)
        self.log(f"{self.name}: ended with exit code {found.exit_code} ({found.reason})")
        self.tell()

    def _probe(self, now_s: float) -> None:
        for name, state in self._probes.items():
            if now_s < state.due_s or (name == "startup") == self._is_started:
                continue
            probe = self.spec[f"{name}Probe"]
            state.due_s = now_s + probe["periodSeconds"]
            is_good = self._asks(probe)
            state.failures = 0 if is_good else state.failures + 1
            is_bad = state.failures >= probe["failureThreshold"]
            if name == "readiness":
                self._set_ready(True if is_good else False if is_bad else self.is_ready, now_s)
            elif name == "startup" and is_good:
                self._is_started = True
                self._set_ready("readiness" not in self._probes, now_s)
            elif is_bad:
                self.log(f"{self.name}: its {name} probe failed {state.failures} times: it is killed")
                self.runtime.StopContainer(
                    Cri.StopContainerRequest(container_id=self.container_id, timeout=self.grace_s)
                )

    def _set_ready(self, is_ready: bool, now_s: float) -> None:
        if is_ready != self.is_ready:
            self.is_ready = is_ready
            since = f" {now_s - self.began_s:.2f} s after its start" if is_ready else ""
            self.log(f"{self.name}: {'ready' if is_ready else 'not ready'}{since}")
            self.tell()

    def _asks(self, probe: Manifest) -> bool:
        limit_s = probe["timeoutSeconds"]
        try:
            if "grpc" in probe:
                with grpc.insecure_channel(f"{self.config.ip}:{probe['grpc']['port']}") as channel:
                    request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
                    stub: Any = health_pb2_grpc.HealthStub(channel)
                    answer = stub.Check(request, timeout=limit_s)
                    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
            if "httpGet" in probe:
                url = f"http://{self.config.ip}:{probe['httpGet']['port']}{probe['httpGet']['path']}"
                with urllib.request.urlopen(url, timeout=limit_s) as answer:
                    return bool(answer.status < 400)
            command = probe["exec"]["command"]
            request = Cri.ExecSyncRequest(container_id=self.container_id, cmd=command, timeout=limit_s)
            return bool(self.runtime.ExecSync(request).exit_code == 0)
        except (grpc.RpcError, OSError):
            return False


def log_text(path: Path) -> str:
    """What a container wrote, of a log as runtimes keep it: TIME STREAM TAG TEXT."""
    if not path.exists():
        return ""
    lines = [line.split(" ", 3) for line in path.read_text(errors="replace").splitlines()]
    return "".join(line[3] + ("\n" if line[2] == "F" else "") for line in lines if len(line) == 4)
