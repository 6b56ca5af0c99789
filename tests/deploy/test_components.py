"""The options together: groups of several pods, the REST front, metrics. Each rule is broken once."""

import copy
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from deploy.manifests.assertions import faults
from deploy.manifests.rendering import parse, render_text, write_combination
from deploy.manifests.schemas import schema_faults

Objects = list[Any]
SHAPE = "{name: fastserve-group-shape, behavior: merge, literals: [tp=4, pp=2]}"


@pytest.fixture(scope="module")
def stages() -> Objects:
    """Groups of two pods with four ranks each, all options that go with that, and an autoscaler."""
    options = ("autoscaler", "gpu-nvidia", "lws", "model-volume", "monitoring", "network-policies", "rest")
    made = write_combination(options) / "kustomization.yaml"
    folder = made.parent.with_name("two-stages-of-four-ranks")
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(f"{made.read_text()}\nconfigMapGenerator: [{SHAPE}]\n")
    return list(parse(render_text(folder)))


@pytest.fixture(scope="module")
def scaled() -> Objects:
    """KEDA scales the pods of a StatefulSet."""
    return list(parse(render_text(write_combination(("keda", "network-policies")))))


def found(objects: Objects, kind: str, name: str = "fastserve") -> Any:
    return next(one for one in objects if one["kind"] == kind and one["metadata"]["name"].startswith(name))


def template(objects: Objects, part: str) -> Any:
    return found(objects, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"][part]["spec"]


def ranks(objects: Objects) -> Any:
    return template(objects, "workerTemplate")["containers"][0]


def front(objects: Objects) -> Any:
    return found(objects, "Deployment", "fastserve-gateway")["spec"]["template"]["spec"]["containers"][1]


def test_a_group_of_several_pods_is_what_the_map_says_in_one_place(stages: Objects) -> None:
    assert schema_faults(stages) == []
    assert faults(stages) == []
    assert found(stages, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["size"] == 2
    for part in ("leaderTemplate", "workerTemplate"):
        assert int(template(stages, part)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) == 4
    assert not [one for one in stages if one["kind"] == "StatefulSet"]


def test_kernels_are_compiled_into_a_folder_that_a_gpus_worker_can_write(stages: Objects) -> None:
    """The image's own file system is read-only."""
    container = template(stages, "workerTemplate")["containers"][0]
    cache = next(one["value"] for one in container["env"] if one["name"] == "TRITON_CACHE_DIR")
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert any(PurePosixPath(cache).is_relative_to(path) for path in writable)


def test_the_autoscaler_scales_the_object_that_holds_the_groups(stages: Objects) -> None:
    container = found(stages, "Deployment", "fastserve-autoscaler")["spec"]["template"]["spec"]["containers"][0]
    assert "--target-kind=LeaderWorkerSet" in container["args"]
    rule = found(stages, "Role", "fastserve-autoscaler")["rules"][0]
    assert (rule["apiGroups"], rule["resources"]) == (["leaderworkerset.x-k8s.io"], ["leaderworkersets/scale"])
    assert rule["resourceNames"] == ["fastserve-worker"]


BROKEN: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "as many pods as there are not stages": (
        lambda all: found(all, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"].update(size=3),
        "fastserve-worker: a group has 3 pods, but 2 stages",
    ),
    "ranks that say in another file that they have joined": (
        lambda all: ranks(all)["args"].append("--ready-file=/tmp/other"),
        "fastserve-worker: its ranks write /tmp/other, and its startupProbe runs test -e /tmp/joined",
    ),
    "ranks that are asked although they serve nothing": (
        lambda all: ranks(all).update(livenessProbe={"grpc": {"port": 50054}}),
        "fastserve-worker: its ranks listen nowhere",
    ),
    "a flag that the REST front does not have": (
        lambda all: front(all)["args"].append("--workers=2"),
        "fastserve-gateway: fastserve-rest has no flag --workers",
    ),
    "a REST front that listens where nobody asks": (
        lambda all: front(all)["ports"][0].update(containerPort=8081),
        "fastserve-gateway: fastserve-rest listens on 0.0.0.0:8080, not on its container's port http",
    ),
    "a REST front that is asked elsewhere": (
        lambda all: front(all)["readinessProbe"]["httpGet"].update(port=50051),
        "fastserve-gateway: readinessProbe does not ask fastserve-rest",
    ),
    "a REST front without its gateway": (
        lambda all: front(all)["args"].__setitem__(1, "--gateway=127.0.0.1:50052"),
        "fastserve-gateway: fastserve-rest dials 127.0.0.1:50052, which is no gateway of its pod",
    ),
    "a REST front that drains for too long": (
        lambda all: front(all)["args"].append("--drain-limit=60s"),
        "fastserve-gateway: fastserve-rest is killed after 60 s, but takes 5 + 60 s to end",
    ),
    "metrics that no pod has": (
        lambda all: found(all, "PodMonitor")["spec"]["podMetricsEndpoints"][0].update(port="http-metrics"),
        "PodMonitor fastserve: no pod has a port http-metrics",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_of_an_option_is_told(what: str, stages: Objects) -> None:
    break_it, told = BROKEN[what]
    objects = copy.deepcopy(stages)
    break_it(objects)
    assert any(told in fault for fault in faults(objects)), faults(objects)


def test_a_field_that_our_schemas_do_not_know_is_refused_also_inside_a_template(stages: Objects) -> None:
    objects = copy.deepcopy(stages)
    found(objects, "PodMonitor")["spec"]["every"] = "1s"
    template(objects, "workerTemplate")["graceSeconds"] = 3
    found(objects, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["pods"] = 2
    told = "\n".join(schema_faults(objects))
    for name in ("every", "graceSeconds", "pods"):
        assert f"'{name}' was unexpected" in told


def trigger(objects: Objects) -> Any:
    return found(objects, "ScaledObject")["spec"]["triggers"][0]["metadata"]


BROKEN_SCALERS: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "a key that the scheduler does not know": (
        lambda all: trigger(all).update(podsPerGroups="2"),
        "ScaledObject fastserve-worker: scalerMetadata.podsPerGroups: there is no such key",
    ),
    "an address in another namespace": (
        lambda all: trigger(all).update(scalerAddress="fastserve-scheduler.default:50052"),
        "ScaledObject fastserve-worker: no scheduler listens at fastserve-scheduler.default:50052",
    ),
    "a port where no scheduler listens": (
        lambda all: trigger(all).update(scalerAddress="fastserve-scheduler.fastserve:9090"),
        "ScaledObject fastserve-worker: no scheduler listens at fastserve-scheduler.fastserve:9090",
    ),
    "a number of pods beside that of the scaler": (
        lambda all: found(all, "StatefulSet")["spec"].update(replicas=1),
        "fastserve-worker: has replicas of its own, and ScaledObject fastserve-worker sets them",
    ),
}


@pytest.mark.parametrize("what", BROKEN_SCALERS)
def test_a_broken_rule_of_keda_is_told(what: str, scaled: Objects) -> None:
    break_it, told = BROKEN_SCALERS[what]
    assert faults(scaled) == []
    assert schema_faults(scaled) == []
    objects = copy.deepcopy(scaled)
    break_it(objects)
    assert any(told in fault for fault in faults(objects)), faults(objects)


def test_keda_scales_the_object_that_holds_the_groups() -> None:
    objects = list(parse(render_text(write_combination(("keda", "lws")))))
    assert faults(objects) == []
    target = found(objects, "ScaledObject")["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "fastserve-worker",
    }  # fmt: skip
