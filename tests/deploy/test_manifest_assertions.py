"""What the manifests must be: each rule is broken once, in a rendering that is right, and the fault is told."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from deploy.manifests.assertions import faults
from deploy.manifests.check import judged
from deploy.manifests.rendering import K8S, components, overlays, parse, render_text, subsets, write_combination
from deploy.manifests.schemas import schema_faults

Objects = list[Any]


@pytest.fixture(scope="module")
def gpu() -> Objects:
    """Overlay gpu: volumes, GPUs and closed network, so it has all that the rules speak of."""
    return list(parse(render_text(K8S / "overlays" / "gpu")))


def found(objects: Objects, kind: str, name: str) -> Any:
    return next(one for one in objects if one["kind"] == kind and one["metadata"]["name"].startswith(name))


def pod(objects: Objects, component: str) -> Any:
    kind = "StatefulSet" if component == "worker" else "Deployment"
    return found(objects, kind, f"fastserve-{component}")["spec"]["template"]["spec"]


def container(objects: Objects, component: str) -> Any:
    return pod(objects, component)["containers"][0]


def without(objects: Objects, kind: str, name: str) -> None:
    objects.remove(found(objects, kind, name))


def four_ranks_without_shared_memory(objects: Objects) -> None:
    worker = container(objects, "worker")
    found(objects, "ConfigMap", "fastserve-group-shape")["data"]["tp"] = "4"
    worker["resources"]["limits"]["nvidia.com/gpu"] = 4
    worker["volumeMounts"] = [mount for mount in worker["volumeMounts"] if mount["name"] != "shared-memory"]


def autoscaler_of_worker(objects: Objects) -> None:
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "fastserve-worker"}
    objects.append(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "own"},
            "spec": {"scaleTargetRef": target, "maxReplicas": 4},
        }
    )


def set_config(text: str) -> Callable[[Objects], None]:
    return lambda objects: found(objects, "ConfigMap", "fastserve-config")["data"].update({"fastserve.toml": text})


BROKEN: dict[str, tuple[Callable[[Objects], Any], str]] = {
    "a flag that the code does not have": (
        lambda all: container(all, "gateway")["args"].append("--replicas=2"),
        "fastserve-gateway: command line: unrecognized arguments: --replicas=2",
    ),
    "a variable that the code does not have": (
        lambda all: container(all, "worker")["env"].append({"name": "FASTSERVE_WORKER_SPEED", "value": "1"}),
        "fastserve-worker: FASTSERVE_WORKER_SPEED: there is no such setting",
    ),
    "a variable in a shared map that no service has": (
        lambda all: found(all, "ConfigMap", "fastserve-model")["data"].update({"FASTSERVE_MODLE": "/x"}),
        "fastserve-scheduler: FASTSERVE_MODLE: there is no such setting",
    ),
    "a key of the TOML file that the code does not have": (
        set_config("[scheduler]\nmax_batches = 4\n"),
        "[scheduler] max_batches: there is no such setting",
    ),
    "a file that is no TOML": (set_config("[scheduler\n"), "fastserve-kvmanager: --config: can't read"),
    "a map that is not there": (
        lambda all: without(all, "ConfigMap", "fastserve-model"),
        "fastserve-gateway: it needs what is not there: 'fastserve-model",
    ),
    "a service that only its own pod reaches": (
        lambda all: container(all, "kvmanager")["args"].__setitem__(0, "--listen=127.0.0.1:50053"),
        "fastserve-kvmanager: listens on 127.0.0.1, where no other pod reaches it",
    ),
    "a port that is not the one listened on": (
        lambda all: container(all, "scheduler")["ports"][0].update(containerPort=50099),
        "fastserve-scheduler: listens on port 50052, but its container's port grpc is 50099",
    ),
    "a probe of another port": (
        lambda all: container(all, "worker")["livenessProbe"]["grpc"].update(port=9090),
        "fastserve-worker: livenessProbe asks 'liveness' on port 9090",
    ),
    "no probe": (
        lambda all: container(all, "worker").pop("startupProbe"),
        "fastserve-worker: has no startupProbe by gRPC",
    ),
    "a peer that no Service stands for": (
        lambda all: without(all, "Service", "fastserve-kvmanager"),
        "fastserve-worker: dials fastserve-kvmanager:50053, which no Service has",
    ),
    "a Service that selects nothing": (
        lambda all: found(all, "Service", "fastserve-kvmanager")["spec"]["selector"].update(x="y"),
        "Service fastserve-kvmanager: selects no pods",
    ),
    "a Service without a selector that nobody writes itself into": (
        lambda all: container(all, "scheduler")["args"].remove("--leader-service=fastserve-scheduler"),
        "Service fastserve-scheduler: selects no pods",
    ),
    "a Service whose port no pod has": (
        lambda all: found(all, "Service", "fastserve-kvmanager")["spec"]["ports"][0].update(targetPort="http"),
        "Service fastserve-kvmanager: fastserve-kvmanager has no port http",
    ),
    "a policy that keeps a caller out": (
        lambda all: found(all, "NetworkPolicy", "fastserve-kvmanager")["spec"]["ingress"][0]["from"].pop(),
        "fastserve-kvmanager: no policy lets fastserve-worker in",
    ),
    "a policy that keeps a caller in": (
        lambda all: found(all, "NetworkPolicy", "fastserve-gateway")["spec"].pop("egress"),
        "fastserve-gateway: no policy lets it dial fastserve-scheduler",
    ),
    "a grace period that the drain does not fit in": (
        lambda all: pod(all, "gateway").update(terminationGracePeriodSeconds=50),
        "fastserve-gateway: is killed after 50 s, but takes 5 + 45 s to end",
    ),
    "variables of Kubernetes' own making": (
        lambda all: pod(all, "gateway").pop("enableServiceLinks"),
        "fastserve-gateway: gets variables of Kubernetes' own making",
    ),
    "a token that nothing needs": (
        lambda all: pod(all, "worker").update(automountServiceAccountToken=True),
        "fastserve-worker: has a token of the API without a role",
    ),
    "a root that may be written": (
        lambda all: container(all, "worker")["securityContext"].pop("readOnlyRootFilesystem"),
        "fastserve-worker: may write its root file system",
    ),
    "memory beyond what was asked for": (
        lambda all: container(all, "gateway")["resources"]["limits"].update(memory="1Gi"),
        "fastserve-gateway: asks for 512Mi of memory, but is limited to 1Gi",
    ),
    "five minutes on a lost node": (
        lambda all: pod(all, "worker").update(tolerations=[]),
        "fastserve-worker: stays on a lost node for other than 30 s",
    ),
    "no disruption budget": (
        lambda all: without(all, "PodDisruptionBudget", "fastserve-scheduler"),
        "fastserve-scheduler: has no disruption budget",
    ),
    "a volume without its claim": (
        lambda all: without(all, "PersistentVolumeClaim", "fastserve-model"),
        "fastserve-worker: the claim fastserve-model is not there",
    ),
    "fewer GPUs than ranks": (
        lambda all: found(all, "ConfigMap", "fastserve-group-shape")["data"].update(tp="4"),
        "fastserve-worker: a pod has 1 GPUs, but 4 ranks on GPUs",
    ),
    "ranks without shared memory": (
        four_ranks_without_shared_memory,
        "fastserve-worker: 4 ranks need /dev/shm in memory",
    ),
    "stages without pods": (
        lambda all: found(all, "ConfigMap", "fastserve-group-shape")["data"].update(pp="2"),
        "fastserve-worker: a group has 1 pods, but 2 stages",
    ),
    "threads that are not those of the limit": (
        lambda all: container(all, "worker")["resources"]["limits"].pop("cpu"),
        "fastserve-worker: its threads are not those of its processor limit",
    ),
    "a number of pods that something else sets": (
        autoscaler_of_worker,
        "fastserve-worker: has replicas of its own, and HorizontalPodAutoscaler own sets them",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_told(what: str, gpu: Objects) -> None:
    break_it, told = BROKEN[what]
    objects = copy.deepcopy(gpu)
    break_it(objects)
    assert any(told in fault for fault in faults(objects)), faults(objects)


@pytest.mark.parametrize("folder", overlays(), ids=lambda folder: folder.name)
def test_every_overlay_is_without_fault(folder: Any) -> None:
    assert list(judged(folder, None)) == []


def test_all_components_together_are_without_fault() -> None:
    """And `make check` judges every combination of them."""
    largest = max(subsets(components()), key=len)
    assert list(judged(write_combination(largest), None)) == []


def test_more_ranks_in_the_one_place_mean_more_gpus_everywhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_combination(("gpu-nvidia",))
    file = folder / "kustomization.yaml"
    folder = folder.with_name("four-ranks")
    folder.mkdir(exist_ok=True)
    shape = "{name: fastserve-group-shape, behavior: merge, literals: [tp=4]}"
    (folder / "kustomization.yaml").write_text(f"{file.read_text()}\nconfigMapGenerator: [{shape}]\n")
    objects = list(parse(render_text(folder)))
    assert faults(objects) == []
    assert int(container(objects, "worker")["resources"]["limits"]["nvidia.com/gpu"]) == 4


def test_a_field_or_a_kind_that_kubernetes_does_not_know_is_refused(gpu: Objects) -> None:
    objects = copy.deepcopy(gpu)
    pod(objects, "gateway")["graceSeconds"] = 3
    objects.append({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "one"}})
    told = schema_faults(objects)
    assert any("Deployment fastserve-gateway" in fault and "graceSeconds" in fault for fault in told)
    assert "Widget one: example.org/v1 has no such kind, and we have no schema for it" in told
