"""The stand-in for Kubernetes' controllers and its scheduler: Deployments, StatefulSets, EndpointSlices, budgets."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from tests.kubernetes.standin.api_objects import (
    APPLY,
    MERGE,
    ApiClient,
    Manifest,
    WatchedObjects,
    is_leaving,
    is_ready,
    labels_of,
    matches,
    path_of,
)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def revision_of(workload: Manifest) -> str:
    """A name for its template."""
    return hashlib.sha256(json.dumps(workload["spec"]["template"], sort_keys=True).encode()).hexdigest()[:8]


def selected_by(service: Manifest, pods: list[Manifest]) -> list[Manifest]:
    """A Service's pods that have an address."""
    namespace, selector = service["metadata"]["namespace"], {"matchLabels": service["spec"]["selector"]}
    return [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == namespace
        and pod.get("status", {}).get("podIP")
        and matches(selector, labels_of(pod))
    ]


class Controllers:
    """`turn` brings everything one step nearer to what the objects ask for."""

    def __init__(self, api: ApiClient, objects: WatchedObjects) -> None:
        self._api, self._objects = api, objects
        self._written: dict[tuple[str, str], Any] = {}
        self._refused: set[str] = set()

    def turn(self) -> None:
        """Once over all objects."""
        pods = self._objects.all("pods")
        workloads = [*self._objects.all("deployments"), *self._objects.all("statefulsets")]
        owners = {one["metadata"]["uid"] for one in workloads}
        for pod in pods:
            of = [reference["uid"] for reference in pod["metadata"].get("ownerReferences", [])]
            if is_leaving(pod):
                continue
            if of and not owners.intersection(of):
                self._delete(pod)
            elif not pod["spec"].get("nodeName"):
                self._place(pod, pods)
        for one in self._objects.all("deployments"):
            self._deployment(one, self._owned(one, pods))
        for one in self._objects.all("statefulsets"):
            self._stateful_set(one, self._owned(one, pods))
        for service in self._objects.all("services"):
            if service["spec"].get("selector"):
                self._slice(service, selected_by(service, pods))
        self._budgets(pods, workloads)

    @staticmethod
    def _owned(owner: Manifest, pods: list[Manifest]) -> list[Manifest]:
        uid = owner["metadata"]["uid"]
        return [pod for pod in pods if uid in [one["uid"] for one in pod["metadata"].get("ownerReferences", [])]]

    def _place(self, pod: Manifest, pods: list[Manifest]) -> None:
        """On the node that has the fewest pods, if one takes any."""
        counts = {
            node["metadata"]["name"]: sum(one["spec"].get("nodeName") == node["metadata"]["name"] for one in pods)
            for node in self._objects.all("nodes")
            if not node["spec"].get("unschedulable")
        }
        if counts:
            name = min(sorted(counts), key=lambda name: counts[name])
            self._api.tried("PATCH", _path(pod), {"spec": {"nodeName": name}}, MERGE)
            pod["spec"]["nodeName"] = name

    def _delete(self, pod: Manifest) -> None:
        self._api.tried("DELETE", _path(pod))

    def _make(self, owner: Manifest, name: str, labels: Mapping[str, str], extra: Mapping[str, Any]) -> None:
        template, meta = owner["spec"]["template"], owner["metadata"]
        reference = {"apiVersion": "apps/v1", "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {**template["metadata"].get("labels", {}), **labels},
                "annotations": template["metadata"].get("annotations", {}),
                "ownerReferences": [{**reference, "controller": True}],
            },
            "spec": {**template["spec"], **extra},
        }
        refusal = self._api.tried("POST", path_of("pods", meta["namespace"]), body)
        if refusal is not None and not refusal.startswith("409") and refusal not in self._refused:
            self._refused.add(refusal)
            print(f"pod {name}: {refusal}", file=sys.stderr, flush=True)

    def _status(self, kind: str, one: Manifest, status: Manifest) -> None:
        key = (kind, one["metadata"]["uid"])
        if self._written.get(key) != status:
            path = f"{path_of(kind, one['metadata']['namespace'], one['metadata']['name'])}/status"
            if self._api.tried("PATCH", path, {"status": status}, MERGE) is None:
                self._written[key] = status

    def _deployment(self, one: Manifest, mine: list[Manifest]) -> None:
        wanted, revision, name = one["spec"]["replicas"], revision_of(one), one["metadata"]["name"]
        live = [pod for pod in mine if not is_leaving(pod)]
        new = [pod for pod in live if labels_of(pod)["pod-template-hash"] == revision]
        old = [pod for pod in live if pod not in new]
        if one["spec"]["strategy"]["type"] == "Recreate":
            surge = 0
            others = [pod for pod in mine if labels_of(pod)["pod-template-hash"] != revision]
            for pod in old:
                self._delete(pod)
            missing = 0 if others else wanted - len(new)
        else:
            rules = one["spec"]["strategy"]["rollingUpdate"]
            surge, away = _share(rules["maxSurge"], wanted, up=True), _share(rules["maxUnavailable"], wanted, up=False)
            missing = min(wanted - len(new), wanted + surge - len(live))
            spare = sum(map(is_ready, live)) - (wanted - away)
            for pod in sorted(old, key=is_ready):
                if not is_ready(pod) or spare > 0:
                    spare -= is_ready(pod)
                    self._delete(pod)
        for _ in range(missing):
            self._make(one, f"{name}-{revision}-{os.urandom(3).hex()[:5]}", {"pod-template-hash": revision}, {})

        # Those that are not ready first, then the cheapest, as ReplicaSets do.
        def worth(pod: Manifest) -> tuple[bool, int]:
            return is_ready(pod), int((pod["metadata"].get("annotations") or {}).get(DELETION_COST, 0))

        for pod in sorted(new, key=worth)[: max(0, len(new) - wanted)]:
            self._delete(pod)
        ready = sum(map(is_ready, live))
        counts = {"replicas": len(live), "updatedReplicas": len(new), "readyReplicas": ready}
        counts |= {"availableReplicas": ready, "unavailableReplicas": max(0, wanted - ready)}
        self._status("deployments", one, {"observedGeneration": one["metadata"]["generation"], **counts})

    def _stateful_set(self, one: Manifest, mine: list[Manifest]) -> None:
        name, wanted, revision = one["metadata"]["name"], one["spec"]["replicas"], revision_of(one)
        assert one["spec"]["podManagementPolicy"] == "Parallel"
        by_number = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in mine}
        for number in range(wanted):
            if number not in by_number:
                labels = {"apps.kubernetes.io/pod-index": str(number), "controller-revision-hash": revision}
                own = {"hostname": f"{name}-{number}", "subdomain": one["spec"].get("serviceName", "")}
                self._make(one, f"{name}-{number}", labels, own)
        live = {number: pod for number, pod in by_number.items() if not is_leaving(pod)}
        for number in sorted((number for number in live if number >= wanted), reverse=True):
            self._delete(live[number])
        stale = [number for number, pod in live.items() if labels_of(pod)["controller-revision-hash"] != revision]
        settled = sorted(live) == list(range(wanted)) and len(by_number) == wanted
        if stale and settled and all(is_ready(pod) for number, pod in live.items() if number not in stale):
            self._delete(live[max(stale)])
        ready, current = sum(map(is_ready, live.values())), len(live) - len(stale)
        counts = {"replicas": len(by_number), "readyReplicas": ready, "availableReplicas": ready}
        counts |= {"currentReplicas": current, "updatedReplicas": current}
        # The old one until no pod has it, by which `kubectl rollout status` sees that it is not over.
        present = labels_of(live[max(stale)])["controller-revision-hash"] if stale else revision
        revisions = {"currentRevision": present, "updateRevision": revision}
        self._status("statefulsets", one, {"observedGeneration": one["metadata"]["generation"], **counts, **revisions})

    def _slice(self, service: Manifest, pods: list[Manifest]) -> None:
        meta, spec = service["metadata"], service["spec"]
        name = f"{meta['name']}-all"
        endpoints = [_endpoint(pod, spec) for pod in sorted(pods, key=lambda pod: str(pod["status"]["podIP"]))]
        ports = [
            {"name": port.get("name", ""), "port": _target(port, pods), "protocol": "TCP"} for port in spec["ports"]
        ]
        owner = {"apiVersion": "v1", "kind": "Service", "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/service-name": meta["name"]},
                "ownerReferences": [owner],
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": ports,
        }
        key = ("slices", meta["uid"])
        if self._written.get(key) != body:
            path = f"{path_of('endpointslices', meta['namespace'], name)}?fieldManager=controllers&force=true"
            if self._api.tried("PATCH", path, body, APPLY) is None:
                self._written[key] = body

    def _budgets(self, pods: list[Manifest], workloads: list[Manifest]) -> None:
        for budget in self._objects.all("poddisruptionbudgets"):
            namespace, spec = budget["metadata"]["namespace"], budget["spec"]
            mine = [
                pod
                for pod in pods
                if pod["metadata"]["namespace"] == namespace and matches(spec["selector"], labels_of(pod))
            ]
            expected = sum(
                one["spec"]["replicas"]
                for one in workloads
                if one["metadata"]["namespace"] == namespace
                and matches(spec["selector"], one["spec"]["template"]["metadata"].get("labels", {}))
            )
            healthy = sum(is_ready(pod) and not is_leaving(pod) for pod in mine)
            least = expected - _share(spec["maxUnavailable"], expected, up=True)
            allowed = max(0, healthy - least)
            counts = {"currentHealthy": healthy, "desiredHealthy": least, "expectedPods": expected}
            generation = {"observedGeneration": budget["metadata"]["generation"]}
            self._status("poddisruptionbudgets", budget, {**generation, **counts, "disruptionsAllowed": allowed})


def _path(pod: Manifest) -> str:
    return path_of("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])


def _share(number: Any, of: int, up: bool) -> int:
    """A number, or a percentage of one."""
    if not isinstance(number, str):
        return int(number)
    percent = int(number.removesuffix("%"))
    return -(-of * percent // 100) if up else of * percent // 100


def _endpoint(pod: Manifest, service: Manifest) -> Manifest:
    leaving, ready = is_leaving(pod), is_ready(pod)
    serves = (ready and not leaving) or service.get("publishNotReadyAddresses", False)
    meta = pod["metadata"]
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": serves, "serving": ready, "terminating": leaving},
        "nodeName": pod["spec"].get("nodeName"),
        "targetRef": {"kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
    }


def _target(port: Manifest, pods: list[Manifest]) -> int:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    named = {
        one.get("name"): int(one["containerPort"])
        for pod in pods
        for container in pod["spec"]["containers"]
        for one in container.get("ports", [])
    }
    return named.get(target, int(port["port"]))
