"""What must hold of every rendering beyond what schemas say: pure functions from objects to faults, a line each.

`faults` asks all of them. What a service would start with is read by the service's own settings, so that a flag, a
variable or a TOML key that the code does not have is a fault here and not a pod that restarts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deploy.manifests.pods import (
    FRONT,
    LOOPBACK,
    Workload,
    behind,
    by_name,
    dials,
    front_flags,
    fronts,
    listens_on,
    matches,
    of_kind,
    ports_of,
    probed_at,
    service_of,
    settings_of,
    started,
    workloads,
)
from deploy.manifests.rendering import Manifest
from deploy.manifests.tls_assertions import tls_faults
from services.autoscaler.settings import AutoscaleSettings
from services.domain.errors import InvalidFieldError
from services.runtime.server import LINKS, LIVENESS, READINESS
from services.runtime.settings import Settings, split_address
from services.scheduler.scaler_service import question_of

GPU = "nvidia.com/gpu"
GROUP_SHAPE = "fastserve-group-shape"
EVICTED_AFTER_S = 30
DENY_ALL = "fastserve-deny-all"
"""The policy that closes the network."""
PROBES = {"startupProbe": {LIVENESS}, "livenessProbe": {LIVENESS}, "readinessProbe": {READINESS, LINKS}}

Objects = Sequence[Manifest]


def settings_faults(objects: Objects) -> Iterator[str]:
    """Flags, variables and TOML keys are those of the code, with values that it accepts."""
    for workload in workloads(objects):
        for container in workload.containers:
            if service_of(container):
                try:
                    settings_of(workload, container, objects)
                except InvalidFieldError as error:
                    yield f"{workload.name}: {error}"
                except KeyError as error:
                    yield f"{workload.name}: it needs what is not there: {error}"


def _silent_faults(workload: Workload, container: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Of ranks that listen nowhere: a file says that they have joined."""
    asked = container.get("startupProbe", {}).get("exec", {}).get("command", [])
    if settings.ready_file is None or asked != ["test", "-e", str(settings.ready_file)]:
        yield f"{workload.name}: its ranks write {settings.ready_file}, and its startupProbe runs {' '.join(asked)}"
    if ports_of(container) or any("grpc" in container.get(probe, {}) for probe in PROBES):
        yield f"{workload.name}: its ranks listen nowhere"


def port_faults(objects: Objects) -> Iterator[str]:
    """Services listen where probes ask and other pods dial; every peer's name is a Service with that port."""
    by_service = by_name(objects, "Service")
    for workload, container, settings in started(objects):
        ports = ports_of(container)
        if not workload.serves:
            yield from _silent_faults(workload, container, settings)
            continue
        host, port = listens_on(settings)
        if host.startswith(LOOPBACK):
            yield f"{workload.name}: listens on {host}, where no other pod reaches it"
        if ports.get("grpc") != port:
            yield f"{workload.name}: listens on port {port}, but its container's port grpc is {ports.get('grpc')}"
        if ports.get("metrics", 0) != settings.metrics_port:
            yield f"{workload.name}: /metrics is on port {settings.metrics_port}, not on {ports.get('metrics')}"
        probed = probed_at(settings)
        for probe, names in PROBES.items():
            asked = container.get(probe, {}).get("grpc")
            if asked is None:
                yield f"{workload.name}: has no {probe} by gRPC"
            elif asked["port"] != probed or asked.get("service") not in names:
                yield f"{workload.name}: {probe} asks {asked.get('service')!r} on port {asked['port']}"
        for address in dials(settings):
            name, port = split_address(address)
            target = by_service.get(name)
            if target is None or port not in [one["port"] for one in target["spec"]["ports"]]:
                yield f"{workload.name}: dials {address}, which no Service has"


def selector_faults(objects: Objects) -> Iterator[str]:
    """What selects pods selects some, and a Service's ports are ports of theirs."""
    found = list(workloads(objects))
    for one in found:
        selector = one.manifest["spec"].get("selector")
        if one.manifest["kind"] != "LeaderWorkerSet" and not matches(selector, one.labels):
            yield f"{one.name}: its selector does not choose its own pods"
        for spread in one.spec.get("topologySpreadConstraints", []):
            if not matches(spread["labelSelector"], one.labels):
                yield f"{one.name}: spreads pods of others"
    for service in of_kind(objects, "Service"):
        name, chosen = service["metadata"]["name"], behind(service, objects)
        if not chosen:
            yield f"Service {name}: selects no pods"
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            for pod in (one for one in chosen if one.serves):
                ports = [item for container in pod.containers for item in ports_of(container).items()]
                if not any(target in item for item in ports):
                    yield f"Service {name}: {pod.name} has no port {target}"
    for chooser in of_kind(objects, "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"):
        spec = chooser["spec"]
        selector = spec.get("selector", spec.get("podSelector"))
        selected = [pod for pod in found if matches(selector, pod.labels)]
        if not selected:
            yield f"{chooser['kind']} {chooser['metadata']['name']}: selects no pods"
        for scraped in spec.get("podMetricsEndpoints", []):
            if not any(scraped["port"] in ports_of(one) for pod in selected for one in pod.containers):
                yield f"{chooser['kind']} {chooser['metadata']['name']}: no pod has a port {scraped['port']}"


def policy_faults(objects: Objects) -> Iterator[str]:
    """Where the network is closed, whoever dials a peer may, on both sides."""
    if DENY_ALL not in by_name(objects, "NetworkPolicy"):
        return
    policies = [one["spec"] for one in of_kind(objects, "NetworkPolicy")]
    by_service = by_name(objects, "Service")

    def allows(of: Workload, to: Workload, port: int, rules: str, peers: str) -> bool:
        for spec in policies:
            if matches(spec["podSelector"], of.labels):
                for rule in spec.get(rules, []):
                    is_peer = peers not in rule or any(
                        "podSelector" in peer
                        and "namespaceSelector" not in peer
                        and matches(peer["podSelector"], to.labels)
                        for peer in rule[peers]
                    )
                    if is_peer and port in [one["port"] for one in rule.get("ports", [])]:
                        return True
        return False

    for workload, _, settings in started(objects):
        for address in dials(settings):
            name, port = split_address(address)
            for target in behind(by_service[name], objects) if name in by_service else []:
                if not allows(workload, target, port, "egress", "to"):
                    yield f"{workload.name}: no policy lets it dial {name}"
                if not allows(target, workload, port, "ingress", "from"):
                    yield f"{target.name}: no policy lets {workload.name} in"


def ending_faults(objects: Objects) -> Iterator[str]:
    """The grace period covers the wait before SIGTERM and the drain after it."""
    for workload, container, settings in started(objects):
        grace_s = workload.spec.get("terminationGracePeriodSeconds", 30)
        pre_stop_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        # A scheduler with a Lease hands its jobs over instead.
        drain_s = 0.0 if getattr(settings, "lease", None) else getattr(settings, "drain_limit", 0.0)
        if grace_s <= pre_stop_s + drain_s:
            yield f"{workload.name}: is killed after {grace_s} s, but takes {pre_stop_s} + {drain_s:g} s to end"


def _restricted(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    of_pod, own = spec.get("securityContext", {}), container.get("securityContext", {})
    if not of_pod.get("runAsNonRoot") or of_pod.get("runAsUser") != 10001:
        yield "runs as root, or as another user than the images'"
    if of_pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "keeps privileges"
    if not own.get("readOnlyRootFilesystem"):
        yield "may write its root file system"


def pod_faults(objects: Objects) -> Iterator[str]:
    """Every pod is restricted, takes the memory that it asked for, leaves a lost node soon, and may be evicted."""
    accounts, classes = by_name(objects, "ServiceAccount"), by_name(objects, "PriorityClass")
    claims, bound = (
        by_name(objects, "PersistentVolumeClaim"),
        {subject["name"] for one in of_kind(objects, "RoleBinding") for subject in one["subjects"]},
    )
    budgets = of_kind(objects, "PodDisruptionBudget")
    for one in workloads(objects):
        spec = one.spec
        if spec.get("enableServiceLinks") is not False:
            yield f"{one.name}: gets variables of Kubernetes' own making (enableServiceLinks)"
        account = spec.get("serviceAccountName")
        if account not in accounts or spec.get("priorityClassName") not in classes:
            yield f"{one.name}: its service account or priority class is not there"
        if bool(spec.get("automountServiceAccountToken", True)) != (account in bound):
            yield f"{one.name}: has a token of the API without a role, or a role without a token"
        waits = {
            wait.get("key"): wait.get("tolerationSeconds")
            for wait in spec.get("tolerations", [])
            if wait.get("effect") == "NoExecute"
        }
        if any(waits.get(f"node.kubernetes.io/{state}") != EVICTED_AFTER_S for state in ("not-ready", "unreachable")):
            yield f"{one.name}: stays on a lost node for other than {EVICTED_AFTER_S} s"
        if not any(matches(budget["spec"]["selector"], one.labels) for budget in budgets):
            yield f"{one.name}: has no disruption budget"
        for volume in spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in claims:
                yield f"{one.name}: the claim {claim} is not there"
        for container in one.containers:
            yield from (f"{one.name}: {fault}" for fault in _restricted(spec, container))
            resources = container.get("resources", {})
            asked, limit = (resources.get(part, {}).get("memory") for part in ("requests", "limits"))
            if asked is None or asked != limit:
                yield f"{one.name}: asks for {asked} of memory, but is limited to {limit}"


def group_faults(objects: Objects) -> Iterator[str]:
    """A group has as many GPUs, pods and shared memory as its shape says, and as many threads as processors."""
    maps = by_name(objects, "ConfigMap")
    shape: Mapping[str, str] = next((one["data"] for name, one in maps.items() if name.startswith(GROUP_SHAPE)), {})
    tp, pp = int(shape.get("tp", 0)), int(shape.get("pp", 0))
    for workload, container, _ in started(objects):
        if service_of(container) != "worker":
            continue
        if min(tp, pp) < 1:
            yield f"{workload.name}: there is no {GROUP_SHAPE} with tp and pp"
        kinds = {one["metadata"]["name"]: one for one in of_kind(objects, "LeaderWorkerSet")}
        size = kinds[workload.name]["spec"]["leaderWorkerTemplate"]["size"] if workload.name in kinds else 1
        if size != pp:
            yield f"{workload.name}: a group has {size} pods, but {pp} stages"
        values = {one["name"]: one for one in container.get("env", [])}
        on_gpu = values.get("FASTSERVE_WORKER_DEVICE", {}).get("value") == "cuda"
        gpus = int(container["resources"].get("limits", {}).get(GPU, 0))
        if gpus != (tp if on_gpu else 0):
            yield f"{workload.name}: a pod has {gpus} GPUs, but {tp} ranks on {'GPUs' if on_gpu else 'processors'}"
        mounted = [mount["name"] for mount in container.get("volumeMounts", []) if mount["mountPath"] == "/dev/shm"]
        memory = [
            one["name"] for one in workload.spec.get("volumes", []) if one.get("emptyDir", {}).get("medium") == "Memory"
        ]
        if tp > 1 and not set(mounted) & set(memory):
            yield f"{workload.name}: {tp} ranks need /dev/shm in memory"
        threads = values.get("FASTSERVE_WORKER_THREADS", {}).get("valueFrom", {}).get("resourceFieldRef", {})
        if threads.get("resource") != "limits.cpu" or "cpu" not in container["resources"].get("limits", {}):
            yield f"{workload.name}: its threads are not those of its processor limit"


def scale_faults(objects: Objects) -> Iterator[str]:
    """What something scales carries no number of its own, which every `apply` would set again."""
    for one in of_kind(objects, "ScaledObject", "HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        scaled = by_name(objects, target.get("kind", "Deployment")).get(target["name"])
        if scaled is None:
            yield f"{one['kind']} {one['metadata']['name']}: {target['name']} is not there"
        elif "replicas" in scaled["spec"]:
            yield f"{target['name']}: has replicas of its own, and {one['kind']} {one['metadata']['name']} sets them"
    for workload, _, settings in started(objects):
        if isinstance(settings, AutoscaleSettings):
            scaled = by_name(objects, settings.target_kind).get(settings.target_name)
            if scaled is None or "replicas" in scaled["spec"]:
                yield f"{workload.name}: {settings.target_name} is not there, or has replicas of its own"


def scaler_faults(objects: Objects) -> Iterator[str]:
    """KEDA is told what the scheduler understands, and asks where a scheduler listens."""
    by_service = by_name(objects, "Service")
    for one in of_kind(objects, "ScaledObject"):
        for trigger in one["spec"]["triggers"]:
            try:
                question_of(trigger["metadata"])
            except InvalidFieldError as error:
                yield f"ScaledObject {one['metadata']['name']}: {error}"
            host, port = split_address(trigger["metadata"]["scalerAddress"])
            name, _, namespace = host.partition(".")
            chosen = behind(by_service[name], objects) if name in by_service else []
            ports = [
                listens_on(settings)[1]
                for workload, _, settings in started(objects)
                if any(workload.manifest is pod.manifest for pod in chosen)
            ]
            if namespace != one["metadata"]["namespace"] or port not in ports:
                yield f"ScaledObject {one['metadata']['name']}: no scheduler listens at {host}:{port}"


def rest_faults(objects: Objects) -> Iterator[str]:
    """The REST front has the flags that it is given, dials its own pod's gateway, and is asked where it listens."""
    known = front_flags()
    for workload, front, given in fronts(objects):
        yield from (f"{workload.name}: {FRONT} has no flag --{name}" for name in given if name not in known)
        port = split_address(given.get("listen", "127.0.0.1:0")).port
        if given.get("listen", "127.").startswith(LOOPBACK) or ports_of(front).get("http") != port:
            yield f"{workload.name}: {FRONT} listens on {given.get('listen')}, not on its container's port http"
        for probe in PROBES:
            if front.get(probe, {}).get("httpGet", {}).get("port") != port:
                yield f"{workload.name}: {probe} does not ask {FRONT}"
        gateways = [settings for pod, _, settings in started(objects) if pod.manifest is workload.manifest]
        if [f"127.0.0.1:{listens_on(one)[1]}" for one in gateways] != [given.get("gateway")]:
            yield f"{workload.name}: {FRONT} dials {given.get('gateway')}, which is no gateway of its pod"
        grace_s = workload.spec.get("terminationGracePeriodSeconds", 30)
        pre_stop_s = front.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        drain_s = float(given.get("drain-limit", "30s").removesuffix("s"))
        if grace_s <= pre_stop_s + drain_s:
            takes = f"{pre_stop_s} + {drain_s:g} s"
            yield f"{workload.name}: {FRONT} is killed after {grace_s} s, but takes {takes} to end"


ASSERTIONS: tuple[Callable[[Objects], Iterator[str]], ...] = (
    settings_faults,
    port_faults,
    selector_faults,
    policy_faults,
    ending_faults,
    pod_faults,
    group_faults,
    scale_faults,
    scaler_faults,
    rest_faults,
    tls_faults,
)


def faults(objects: Objects) -> list[str]:
    """All faults of a rendering, each once."""
    return list(dict.fromkeys(fault for assertion in ASSERTIONS for fault in assertion(objects)))
