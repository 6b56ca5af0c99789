"""Worker groups come and go as the scheduler's forecast asks; and from none."""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.live import OVERLAY, LiveCluster
from tests.kubernetes.machine import wait_for
from tests.kubernetes.open_streams import STREAMS, TOKENS, OpenStreams, outcome_of, undisturbed
from tests.kubernetes.programs import WORK
from tests.kubernetes.rows import Row

COMPONENTS = OVERLAY.parents[1] / "components"
AUTOSCALED = WORK / "overlays" / "autoscaled"
SCALE_LIMIT_S = 120.0
LOOK_S = 0.2
WAITING_STREAMS = 8
LINE_LIMIT_S = 60.0


def _written(folder: Path) -> Path:
    """Overlay test with component autoscaler."""
    folder.mkdir(parents=True, exist_ok=True)
    resources, components = (os.path.relpath(path, folder) for path in (OVERLAY, COMPONENTS / "autoscaler"))
    document = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "namespace": "fastserve"}
    (folder / "kustomization.yaml").write_text(
        json.dumps({**document, "resources": [resources], "components": [components]})
    )
    return folder


def _gauges(cluster: LiveCluster) -> dict[str, float]:
    """Of the leader's page; none while nobody leads."""
    try:
        with urllib.request.urlopen(f"http://{cluster.leader().ip}:9090/metrics", timeout=5) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("fastserve:")]
    except (StopIteration, OSError):
        return {}
    return {name.partition("{")[0]: float(value) for name, value, *_ in lines}


def autoscaler(cluster: LiveCluster) -> Iterator[Row]:
    """More groups under load, fewer after it; alone, and told what it may not do."""
    before = undisturbed(cluster.address())
    cluster.kubectl("apply", "-k", str(_written(AUTOSCALED)))
    cluster.wait_settled()
    groups = [len(cluster.pods("worker"))]
    wanted: list[float] = []

    def now_are(count: int) -> bool:
        workers = cluster.pods("worker")
        now = sum(pod.is_ready and not pod.is_leaving for pod in workers)
        groups.extend([now] if now != groups[-1] else [])
        wanted.append(_gauges(cluster).get("fastserve:groups_wanted", 0.0))
        return now == count and len(workers) >= count

    with OpenStreams([cluster.address()], STREAMS, TOKENS, renews=True) as during:
        wait_for(lambda: now_are(2) or groups[-1] > 2, "a second group", SCALE_LIMIT_S, LOOK_S)
    wait_for(lambda: now_are(1) and len(cluster.pods("worker")) == 1, "one group again", SCALE_LIMIT_S, LOOK_S)
    outcome = outcome_of(during.streams, before, TOKENS)
    told = f"groups wanted up to {max(wanted):.0f}, there were {' -> '.join(map(str, groups))}; {outcome}"
    yield Row(
        "`fastserve autoscale`: more groups under load, fewer after it, and no stream fails", outcome.is_whole, told
    )
    yield _forbidden(cluster)
    yield _rival(cluster)
    cluster.kubectl("delete", "deployment,pdb,sa,role,rolebinding,networkpolicy", "fastserve-autoscaler")
    wait_for(lambda: not cluster.pods("autoscaler"), "the end of the autoscaler", LINE_LIMIT_S)


def _forbidden(cluster: LiveCluster) -> Row:
    role = cluster.get("role", "fastserve-autoscaler")
    rules = [{"op": "remove", "path": "/rules/0"}]
    cluster.kubectl("patch", "role", "fastserve-autoscaler", "--type=json", "-p", json.dumps(rules))
    words = "the service account may not get statefulsets/scale in namespace fastserve: give it a Role"
    pod = cluster.pod("autoscaler").name
    wait_for(lambda: any(words in line for line in cluster.log(pod)), words, LINE_LIMIT_S)
    cluster.kubectl("patch", "role", "fastserve-autoscaler", "-p", json.dumps({"rules": role["rules"]}))
    cluster.wait_settled()
    return Row(
        "/scale is forbidden (verb and resource): one line says what to change, and it heals", True, f"`{words}`"
    )


def _rival(cluster: LiveCluster) -> Row:
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "fastserve-worker"}
    rival = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "rival"}}
    rival["spec"] = {"maxReplicas": 3, "scaleTargetRef": target}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(rival))
    cluster.kubectl("delete", "pod", cluster.pod("autoscaler").name, "--wait=false")
    line = cluster.ended_with("autoscaler", "HorizontalPodAutoscaler rival scales the same object", LINE_LIMIT_S)
    cluster.kubectl("delete", "hpa", "rival")
    cluster.wait_settled()
    return Row("the autoscaler refuses to begin beside another one, and heals", True, f"`{line}`")


def from_zero(cluster: LiveCluster) -> Iterator[Row]:
    """No groups, and schedulers that never saw one: jobs wait for the first."""
    before = undisturbed(cluster.address())
    cluster.kubectl("scale", "statefulset/fastserve-worker", "--replicas=0")
    wait_for(lambda: not cluster.pods("worker"), "no workers", SCALE_LIMIT_S)
    old = {pod.name for pod in cluster.pods("scheduler")}
    cluster.kubectl("delete", "pod", "-l", "app.kubernetes.io/component=scheduler", "--wait=false")

    def are_new() -> bool:
        pods = cluster.pods("scheduler")
        return len(pods) == len(old) and all(pod.is_ready and pod.name not in old for pod in pods)

    wait_for(are_new, "new schedulers", SCALE_LIMIT_S)
    streams = OpenStreams([cluster.address()], WAITING_STREAMS, TOKENS, waits=True)
    with streams:
        unplaced = "fastserve:num_requests_unplaced"
        wait_for(
            lambda: _gauges(cluster).get(unplaced) == WAITING_STREAMS,
            "jobs that wait for a group",
            SCALE_LIMIT_S,
            LOOK_S,
        )
        cluster.kubectl("scale", "statefulset/fastserve-worker", "--replicas=1")
    outcome = outcome_of(streams.streams, before, TOKENS)
    told = f"`{unplaced}` was {WAITING_STREAMS}; {outcome}"
    yield Row(
        "from zero groups, after a restart of the schedulers: jobs wait for the first group", outcome.is_whole, told
    )
    cluster.wait_settled()
