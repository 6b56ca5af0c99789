"""The cluster as its user sees it: kubectl, and what it tells of pods."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.builders.repository_paths import ROOT
from tests.kubernetes.machine import RUN, Machine, wait_for
from tests.kubernetes.standin.api_objects import ApiClient, path_of

NAMESPACE = "fastserve"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/fastserve-scheduler"
OVERLAY = ROOT / "deploy" / "k8s" / "overlays" / "test"
COMPONENTS = ("gateway", "scheduler", "kvmanager", "worker")
READY_LIMIT_S = 60.0
COMMAND_LIMIT_S = 180.0
FASTSERVE = ROOT / ".venv" / "bin" / "fastserve"


class KubectlError(Exception):
    """kubectl failed; the text is its own."""


@dataclass(frozen=True, slots=True)
class PodNow:
    """A pod at one moment."""

    name: str
    component: str
    ip: str
    node: str
    is_ready: bool
    is_leaving: bool
    restarts: int
    container_id: str
    last_message: str
    """What its first container's last life left as its termination message."""


class LiveCluster:
    """One namespace on a running machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.kubeconfig = RUN / "api" / "kubeconfig"
        self._api = ApiClient(self.kubeconfig)

    def kubectl(self, *argv: str, text: str | None = None) -> str:
        """kubectl in our namespace; its output. Raises KubectlError."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *argv]
        began_s = time.time()
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
        if argv[0] not in ("get", "logs"):
            with (RUN / "kubectl.log").open("a") as typed:
                typed.write(f"$ kubectl {' '.join(argv)}\n{done.stdout}{done.stderr}")
                typed.write(f"# at {began_s:.2f}, {time.time() - began_s:.2f} s\n")
        if done.returncode:
            raise KubectlError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def get(self, kind: str, *argv: str) -> Any:
        """Objects as plain values."""
        return json.loads(self.kubectl("get", kind, *argv, "-o", "json"))

    def pods(self, component: str | None = None) -> list[PodNow]:
        """By name."""
        label = "app.kubernetes.io/name%3Dfastserve"
        label += "" if component is None else f",app.kubernetes.io/component%3D{component}"
        listed = self._api.json("GET", f"{path_of('pods', NAMESPACE)}?labelSelector={label}")
        return [_pod_now(one) for one in listed["items"]]

    def pod(self, component: str) -> PodNow:
        """The first that stays."""
        return next(pod for pod in self.pods(component) if not pod.is_leaving)

    def settled(self, count: int | None = None) -> bool:
        """Whether every pod is Ready and none is leaving; `count` of them if it is given."""
        pods = self.pods()
        return all(pod.is_ready and not pod.is_leaving for pod in pods) and (count is None or len(pods) == count)

    def wait_settled(self, count: int | None = None, limit_s: float = READY_LIMIT_S) -> float:
        """Seconds until they were. Raises TimeoutError, which tells of those that are not."""
        try:
            return wait_for(lambda: self.settled(count), "all pods Ready", limit_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {[pod for pod in self.pods() if not pod.is_ready]}") from None

    def address(self, service: str = "fastserve-gateway", port: int = 50051) -> str:
        """Of a Service that has an address."""
        return f"{self.get('service', service)['spec']['clusterIP']}:{port}"

    def lease(self) -> tuple[str, int]:
        """Who holds the scheduler's Lease, and its term."""
        spec = self._api.json("GET", LEASE)["spec"]
        return spec.get("holderIdentity", ""), spec.get("leaseTransitions", 0) + 1

    def leader(self) -> PodNow:
        """The scheduler that holds the Lease."""
        holder, _ = self.lease()
        return next(pod for pod in self.pods("scheduler") if holder.startswith(f"{pod.name}_"))

    def signal(self, pod: PodNow, number: signal.Signals) -> None:
        """To the first process of its first container, from outside."""
        os.kill(self.machine.pid_of(pod.container_id), number)

    def memory_mb(self, pod: PodNow) -> float:
        """Resident, of its first process."""
        status = Path(f"/proc/{self.machine.pid_of(pod.container_id)}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1e3

    def log(self, pod: str, *flags: str) -> list[str]:
        """Its lines; none where there is no log yet."""
        try:
            return self.kubectl("logs", pod, *flags).splitlines()
        except KubectlError:
            return []

    def last_line(self, pod: str) -> str:
        """Of a container that has ended, or else of the one that runs."""
        lines = self.log(pod, "--previous") or self.log(pod)
        return lines[-1] if lines else ""

    def ended_with(
        self, component: str, words: str, limit_s: float = READY_LIMIT_S, after: PodNow | None = None
    ) -> str:
        """Waits until a pod of the component, or this one `after` it was seen so, has ended with one of these words
        (with | between them), in its log and as its termination message; the line. Raises TimeoutError.
        """
        found: list[str] = []

        def look() -> bool:
            for pod in self.pods(component):
                if after is not None and (pod.name != after.name or pod.restarts <= after.restarts):
                    continue
                lines = pod.last_message.strip().splitlines()
                if (
                    lines
                    and any(word in lines[-1] for word in words.split("|"))
                    and self.last_line(pod.name) == lines[-1]
                ):
                    found.append(lines[-1])
            return bool(found)

        try:
            wait_for(look, words, limit_s)
        except TimeoutError as error:
            said = [(pod.name, self.last_line(pod.name)) for pod in self.pods(component)]
            raise TimeoutError(f"{error}; last lines: {said}") from None
        return found[0]

    def fastserve(self, *argv: str) -> str:
        """The command, as a client of the cluster. Raises CalledProcessError."""
        done = subprocess.run(
            [str(FASTSERVE), *argv], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=True
        )
        return done.stdout


def _pod_now(one: Any) -> PodNow:
    status = one.get("status", {})
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    containers = status.get("containerStatuses") or [{}]
    return PodNow(
        name=one["metadata"]["name"],
        component=one["metadata"]["labels"].get("app.kubernetes.io/component", ""),
        ip=status.get("podIP", ""),
        node=one["spec"].get("nodeName", ""),
        is_ready=conditions.get("Ready") == "True",
        is_leaving="deletionTimestamp" in one["metadata"],
        restarts=sum(container.get("restartCount", 0) for container in containers),
        container_id=containers[0].get("containerID", "").removeprefix("containerd://"),
        last_message=containers[0].get("lastState", {}).get("terminated", {}).get("message", ""),
    )
