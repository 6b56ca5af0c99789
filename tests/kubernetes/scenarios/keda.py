"""KEDA's own operator scales the groups by what the leading scheduler tells it: from none to one and back to none. From
one to more and back the stand-in for the HPA controller scales, by the HPA that KEDA made and the metrics KEDA has.
"""

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.kubernetes.keda_operator import AutoscalerStandin, keda_operator
from tests.kubernetes.live import OVERLAY, LiveCluster
from tests.kubernetes.machine import wait_for
from tests.kubernetes.open_streams import STREAMS, TOKENS, OpenStreams, outcome_of, undisturbed
from tests.kubernetes.programs import KEDA_VERSION, WORK, keda_sources
from tests.kubernetes.rows import Row

COMPONENT = OVERLAY.parents[1] / "components" / "keda"
SCALED = WORK / "overlays" / "keda"
HPA = "keda-hpa-fastserve-worker"
SCALE_LIMIT_S = 120.0
LOOK_S = 0.2
WOKEN_S = 5.0
"""What a first job may wait until KEDA has asked for a group. The group's own start is not KEDA's."""
COOLDOWN_S = 10
STEADY_S = 3
"""The HPA's stabilization window downwards; by default it is five minutes."""
WAITING_STREAMS = 8


def _overlay() -> Path:
    """Overlay test with component keda, down to no groups, after a short time."""
    SCALED.mkdir(parents=True, exist_ok=True)
    settings = (OVERLAY / "fastserve.toml").read_text()
    (SCALED / "fastserve.toml").write_text(settings.replace("[scheduler]\n", "[scheduler]\nleast_groups = 0\n"))
    assert tomllib.loads((SCALED / "fastserve.toml").read_text())["scheduler"]["least_groups"] == 0
    behavior = {"scaleDown": {"stabilizationWindowSeconds": STEADY_S}}
    patch = [
        {"op": "replace", "path": "/spec/minReplicaCount", "value": 0},
        {"op": "add", "path": "/spec/cooldownPeriod", "value": COOLDOWN_S},
        {"op": "add", "path": "/spec/pollingInterval", "value": 2},
        {"op": "add", "path": "/spec/advanced", "value": {"horizontalPodAutoscalerConfig": {"behavior": behavior}}},
    ]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "fastserve",
        "resources": [os.path.relpath(OVERLAY, SCALED)],
        "components": [os.path.relpath(COMPONENT, SCALED)],
        "configMapGenerator": [{"name": "fastserve-config", "behavior": "replace", "files": ["fastserve.toml"]}],
        "patches": [{"target": {"kind": "ScaledObject"}, "patch": json.dumps(patch)}],
    }
    (SCALED / "kustomization.yaml").write_text(json.dumps(document))
    return SCALED


def _replicas(cluster: LiveCluster) -> int:
    return int(cluster.get("statefulset", "fastserve-worker")["spec"]["replicas"])


def from_none_to_many_and_back(cluster: LiveCluster) -> Iterator[Row]:
    """The operator runs outside of the cluster, as its administrator; the rest is as in a cluster."""
    before = undisturbed(cluster.address())
    cluster.kubectl("apply", "--server-side", "-f", str(keda_sources() / "config" / "crd" / "bases"))
    cluster.kubectl("apply", "-f", "-", text='{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keda"}}')
    with keda_operator(cluster.kubeconfig) as issued:
        cluster.kubectl("apply", "-k", str(_overlay()))
        wait_for(lambda: HPA in cluster.kubectl("get", "hpa", "-o", "name"), "the HPA that KEDA makes", SCALE_LIMIT_S)
        yield _made(cluster)
        down_s = wait_for(lambda: not _replicas(cluster) and not cluster.pods("worker"), "no groups", SCALE_LIMIT_S)
        cluster.wait_settled()
        with OpenStreams([cluster.address()], WAITING_STREAMS, TOKENS, waits=True) as waiting:
            woken_s = wait_for(lambda: _replicas(cluster) == 1, "a group", SCALE_LIMIT_S)
        outcome = outcome_of(waiting.streams, before, TOKENS)
        told = f"no groups after {down_s:.1f} s; 1 wanted {woken_s:.1f} s after jobs came; {outcome}"
        yield Row("KEDA scales 1 -> 0 -> 1, and jobs wait for the group", outcome.is_whole and woken_s <= WOKEN_S, told)
        with AutoscalerStandin(cluster.kubeconfig, issued) as autoscaler:
            with OpenStreams([cluster.address()], STREAMS, TOKENS, renews=True) as during:
                wait_for(lambda: _ready_groups(cluster) > 1, "more groups", SCALE_LIMIT_S, LOOK_S)
            wait_for(lambda: _replicas(cluster) <= 1, "at most one group again", SCALE_LIMIT_S, LOOK_S)
            outcome = outcome_of(during.streams, before, TOKENS)
            again_s = wait_for(lambda: not _replicas(cluster), "no groups again", SCALE_LIMIT_S)
        told = f"{', '.join(autoscaler.changes)}; {outcome}"
        yield Row(
            "the HPA's stand-in scales 1 -> more -> 1 by KEDA's metric, and no stream fails", outcome.is_whole, told
        )
        yield Row("KEDA scales 1 -> 0 once nothing is left", True, f"{again_s:.1f} s after the last change")
        cluster.kubectl("delete", "scaledobject", "fastserve-worker")


def _ready_groups(cluster: LiveCluster) -> int:
    return sum(pod.is_ready and not pod.is_leaving for pod in cluster.pods("worker"))


def _made(cluster: LiveCluster) -> Row:
    spec = cluster.get("hpa", HPA)["spec"]
    metric = spec["metrics"][0]["external"]
    told = f"{spec['minReplicas']} to {spec['maxReplicas']} of {spec['scaleTargetRef']['kind']}, "
    told += f"{metric['metric']['name']} at {metric['target']['averageValue']} a pod"
    what = f"KEDA {KEDA_VERSION} makes an HPA of what the scheduler says"
    return Row(what, metric["target"]["averageValue"] == "1", told)
