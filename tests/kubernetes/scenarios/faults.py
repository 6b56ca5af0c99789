"""What goes wrong: one line that names what to change, and it heals once that is changed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.builders.repository_paths import ROOT
from tests.kubernetes.live import LiveCluster
from tests.kubernetes.machine import wait_for
from tests.kubernetes.rows import Row

BUNDLED = ROOT / "models" / "bundled"
WORKER_SPEC = "/spec/template/spec"
LINE_LIMIT_S = 60.0
PODS = 6
"""When nothing is wrong."""
HEAL_LIMIT_S = 90.0


def _row(what: str, line: str, healed_s: float | None = None) -> Row:
    healed = "" if healed_s is None else f"; all Ready {healed_s:.0f} s after the change"
    return Row(f"{what}: one line says what to change, and it heals", True, f"`{line}`{healed}")


@contextmanager
def _patched_worker(cluster: LiveCluster, *operations: dict[str, Any]) -> Iterator[None]:
    """Other workers in the context. `apply` would not take away what a patch has added."""
    template = cluster.get("statefulset", "fastserve-worker")["spec"]["template"]
    patch = ("patch", "statefulset", "fastserve-worker", "--type=json", "-p")
    cluster.kubectl(*patch, json.dumps(operations))
    yield
    cluster.kubectl(*patch, json.dumps([{"op": "replace", "path": "/spec/template", "value": template}]))


def _variables(**values: str) -> list[dict[str, Any]]:
    return [
        {"op": "add", "path": f"{WORKER_SPEC}/containers/0/env/-", "value": {"name": name, "value": value}}
        for name, value in values.items()
    ]


def bad_settings(cluster: LiveCluster) -> Iterator[Row]:
    """A TOML file that is none, in the map that all services read."""
    maps = cluster.get("configmaps")["items"]
    name = next(one["metadata"]["name"] for one in maps if one["metadata"]["name"].startswith("fastserve-config"))
    before = cluster.get("configmap", name)["data"]["fastserve.toml"]

    def write(text: str) -> None:
        cluster.kubectl("patch", "configmap", name, "-p", json.dumps({"data": {"fastserve.toml": text}}))

    write("[scheduler\n")
    leader = cluster.leader().name
    standby = next(pod for pod in cluster.pods("scheduler") if pod.name != leader)
    cluster.kubectl("delete", "pod", standby.name, "--wait=false")
    line = cluster.ended_with("scheduler", "can't read /etc/fastserve/fastserve.toml", LINE_LIMIT_S)
    write("[scheduler]\nmax_batches = 4\n")
    key = cluster.ended_with("scheduler", "there is no such setting", LINE_LIMIT_S)
    write(before)
    healed_s = cluster.wait_settled(limit_s=HEAL_LIMIT_S)
    yield _row("bad TOML", line, healed_s)
    yield _row("a key that does not exist", key, healed_s)


@contextmanager
def _model_volume(cluster: LiveCluster) -> Iterator[Any]:
    """The worker's model comes from a claim, whose folder this is."""
    claim = cluster.machine.claims / "fastserve-model"
    claim.mkdir(exist_ok=True)
    claim.chmod(0o755)
    volume = {"name": "model", "persistentVolumeClaim": {"claimName": "fastserve-model", "readOnly": True}}
    mount = {"name": "model", "mountPath": "/models/volume", "readOnly": True}
    with _patched_worker(
        cluster,
        {"op": "add", "path": f"{WORKER_SPEC}/volumes/-", "value": volume},
        {"op": "add", "path": f"{WORKER_SPEC}/containers/0/volumeMounts/-", "value": mount},
        *_variables(FASTSERVE_MODEL="/models/volume/model"),
    ):
        yield claim / "model"
    shutil.rmtree(claim)


def wrong_models(cluster: LiveCluster) -> Iterator[Row]:
    """A model volume that is empty, then holds another model, then the right one."""
    with _model_volume(cluster) as folder:
        line = cluster.ended_with("worker", "/models/volume/model is not a folder", LINE_LIMIT_S)
        other = folder.with_name("other")
        shutil.copytree(BUNDLED, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
        other.rename(folder)
        another = cluster.ended_with("worker", "model_fingerprint", LINE_LIMIT_S)
        (folder / "config.json").write_text(json.dumps(config))
        healed_s = cluster.wait_settled(PODS, HEAL_LIMIT_S)
        yield _row("the model volume is empty", line)
        yield _row("another model in one pod", another, healed_s)


def wrong_workers(cluster: LiveCluster) -> Iterator[Row]:
    """A group's shape, its pools and its device, which the pod can't have."""
    for what, values, words in (
        (
            "the size of a LeaderWorkerSet is not pp",
            {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "fastserve-worker-0"},
            "LWS_GROUP_SIZE: is 2, but --pp is 1",
        ),
        ("KV pools above the memory limit", {"FASTSERVE_WORKER_KV_HOST_TOKENS": "50000000"}, "kv-host-tokens"),
        ("GPUs that the pod does not have", {"FASTSERVE_WORKER_DEVICE": "cuda"}, "cuda is not available"),
    ):
        with _patched_worker(cluster, *_variables(**values)):
            yield _row(what, cluster.ended_with("worker", words, LINE_LIMIT_S))
    healed_s = cluster.wait_settled(PODS, HEAL_LIMIT_S)
    yield Row("and they heal once the manifest is right again", True, f"all Ready after {healed_s:.0f} s")


def second_scheduler(cluster: LiveCluster) -> Iterator[Row]:
    """Another Deployment of schedulers, which has not heard of the Lease."""
    made = cluster.get("deployment", "fastserve-scheduler")
    made["metadata"] = {"name": "fastserve-other", "labels": made["metadata"]["labels"]}
    made.pop("status")
    spec, template = made["spec"], made["spec"]["template"]
    spec["replicas"] = 1
    for labels in (spec["selector"]["matchLabels"], template["metadata"]["labels"]):
        labels["app.kubernetes.io/instance"] = "other"
    container = template["spec"]["containers"][0]
    own = ("--lease", "--leader-service")
    container["args"] = [word for word in container["args"] if not word.startswith(own)]
    _, term = cluster.lease()
    cluster.kubectl("apply", "-f", "-", text=json.dumps(made))
    line = cluster.ended_with("scheduler", "has no --lease", LINE_LIMIT_S)
    cluster.kubectl("delete", "deployment", "fastserve-other")
    wait_for(lambda: len(cluster.pods("scheduler")) == 2, "the end of the other", LINE_LIMIT_S)
    same = cluster.lease()[1] == term
    yield Row("a second scheduler Deployment: one line says what to change, the leader leads on", same, f"`{line}`")


def forbidden_lease(cluster: LiveCluster) -> Iterator[Row]:
    """The scheduler's Role is taken from it."""
    binding = cluster.get("rolebinding", "fastserve-scheduler")
    cluster.kubectl("delete", "rolebinding", "fastserve-scheduler")
    words = "the service account may not get leases in namespace fastserve: give it a Role"
    found: list[str] = []

    def told() -> bool:
        found[:] = [line for pod in cluster.pods("scheduler") for line in cluster.log(pod.name) if words in line]
        return bool(found)

    wait_for(told, words, LINE_LIMIT_S)
    binding["metadata"] = {"name": "fastserve-scheduler", "labels": binding["metadata"]["labels"]}
    cluster.kubectl("apply", "-f", "-", text=json.dumps(binding))
    wait_for(
        lambda: any("answers again" in line for pod in cluster.pods("scheduler") for line in cluster.log(pod.name)),
        "the scheduler's Lease",
        LINE_LIMIT_S,
    )
    yield _row("the Lease is forbidden (verb and resource)", found[0], cluster.wait_settled(limit_s=HEAL_LIMIT_S))
