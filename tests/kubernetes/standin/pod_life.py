"""The stand-in for a kubelet: runs the pods of its nodes, a thread each, by a container runtime."""

import threading
import time
from pathlib import Path
from typing import Any

import grpc

from tests.kubernetes.standin.api_objects import (
    MERGE,
    ApiClient,
    Manifest,
    WatchedObjects,
    is_leaving,
    path_of,
    utc_now,
)
from tests.kubernetes.standin.container_life import ContainerLife
from tests.kubernetes.standin.cri_stubs import Cri
from tests.kubernetes.standin.pod_config import NodeFacts, PodConfig

LOOK_S = 0.1


class NodeAgent:
    """One for all nodes of the test: they share a machine."""

    def __init__(self, api: ApiClient, objects: WatchedObjects, runtime: Any, facts: NodeFacts) -> None:
        self.api, self.objects, self.runtime, self.facts = api, objects, runtime, facts
        self._begun: set[str] = set()

    def turn(self) -> None:
        """Begin the pods that have come to a node."""
        for pod in self.objects.all("pods"):
            uid = pod["metadata"]["uid"]
            if pod["spec"].get("nodeName") in self.facts.nodes and uid not in self._begun:
                self._begun.add(uid)
                threading.Thread(target=PodLife(self, pod).live, daemon=True).start()


class PodLife:
    """One pod, from its coming to a node until it is gone."""

    def __init__(self, agent: NodeAgent, pod: Manifest) -> None:
        self._agent = agent
        self._pod = pod
        self._uid = pod["metadata"]["uid"]
        self._spec = pod["spec"]
        self._config = PodConfig(pod, agent.api, agent.objects, agent.facts)
        self._path = path_of("pods", self._config.namespace, self._config.name)
        self._started = utc_now()
        self._containers: list[ContainerLife] = []
        self._sandbox_id = ""

    def live(self) -> None:
        """The thread's body."""
        try:
            self._run()
        except grpc.RpcError as error:
            self._log(f"the runtime fails: {error}")
        self._finish()

    def _log(self, what: str) -> None:
        print(f"{time.time():.2f} {self._config.namespace}/{self._config.name} {what}", flush=True)

    def _now(self) -> Manifest | None:
        """The object as it is now; None if it is gone, or another of the same name has come."""
        found = self._agent.objects.get("pods", self._config.namespace, self._config.name)
        return found if found is not None and found["metadata"]["uid"] == self._uid else None

    def _run(self) -> None:
        runtime = self._agent.runtime
        sandbox = self._config.sandbox()
        self._sandbox_id = runtime.RunPodSandbox(Cri.RunPodSandboxRequest(config=sandbox)).pod_sandbox_id
        found = runtime.PodSandboxStatus(Cri.PodSandboxStatusRequest(pod_sandbox_id=self._sandbox_id))
        self._config.ip = found.status.network.ip
        grace_s = self._spec["terminationGracePeriodSeconds"]
        self._containers = [
            ContainerLife(runtime, self._config, self._sandbox_id, one, grace_s, self._report, self._log)
            for one in self._spec["containers"]
        ]
        self._report()
        while (now := self._now()) is not None and not is_leaving(now):
            for container in self._containers:
                container.step()
            time.sleep(LOOK_S)
        self._stop(now)

    def _stop(self, now: Manifest | None) -> None:
        """All containers at once."""
        asked = (now or self._pod)["metadata"].get("deletionGracePeriodSeconds")
        grace_s = int(self._spec["terminationGracePeriodSeconds"] if asked is None else asked)
        began_s = time.monotonic()
        codes: dict[str, int] = {}

        def stop(container: ContainerLife) -> None:
            codes[container.name] = container.stop(grace_s)

        threads = [threading.Thread(target=stop, args=(one,)) for one in self._containers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._log(f"stopped with exit codes {codes} {time.monotonic() - began_s:.2f} s after its deletion")

    def _report(self) -> None:
        """Write the pod's status, and link its logs to where the API server reads them."""
        is_ready = bool(self._containers) and all(one.is_ready for one in self._containers)
        conditions = [
            {"type": name, "status": "True" if holds else "False", "lastTransitionTime": utc_now()}
            for name, holds in (
                ("PodScheduled", True),
                ("Initialized", True),
                ("ContainersReady", is_ready),
                ("Ready", is_ready),
            )
        ]
        ip = self._config.ip
        status = {
            "phase": "Running",
            "conditions": conditions,
            "containerStatuses": [one.status() for one in self._containers],
            "podIP": ip,
            "podIPs": [{"ip": ip}] if ip else [],
            "hostIP": self._agent.facts.gateway,
            "startTime": self._started,
        }
        for one in self._containers:
            log = self._config.logs / f"{one.name}.{one.restarts}.log"
            before = self._config.logs / f"{one.name}.{one.restarts - 1}.log"
            _link(self._log_link(one.name), log if log.exists() or not one.restarts else before)
            _link(self._log_link(f"{one.name}_previous"), before)
        self._agent.api.tried("PATCH", f"{self._path}/status", {"status": status}, MERGE)

    def _log_link(self, container: str) -> Path:
        name = f"{self._config.namespace}_{self._config.name}_{container}.log"
        return self._agent.facts.folder / "api" / "logs" / name

    def _finish(self) -> None:
        """The sandbox goes, and then the object."""
        runtime = self._agent.runtime
        if self._sandbox_id:
            try:
                runtime.StopPodSandbox(Cri.StopPodSandboxRequest(pod_sandbox_id=self._sandbox_id))
                runtime.RemovePodSandbox(Cri.RemovePodSandboxRequest(pod_sandbox_id=self._sandbox_id))
            except grpc.RpcError as error:
                self._log(f"its sandbox stays: {error}")
        while (now := self._now()) is not None:
            if is_leaving(now):
                self._agent.api.tried(
                    "DELETE", self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}}
                )
            time.sleep(LOOK_S)


def _link(link: Path, target: Path) -> None:
    fresh = link.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)
