"""What the assertions ask of rendered objects: workloads, their pods, and the settings that a container starts with."""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.manifests.rendering import ROOT, Manifest
from services.autoscaler.settings import AutoscaleSettings
from services.domain.errors import InvalidFieldError
from services.gateway.settings import GatewaySettings
from services.kvmanager.settings import KvManagerSettings
from services.runtime.settings import ENVIRONMENT_PREFIX, Settings, parse_flags, resolve, split_address
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings

SERVICES: dict[str, type[Settings]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "kvmanager": KvManagerSettings,
    "worker": WorkerSettings,
    "autoscale": AutoscaleSettings,
}
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
FRONT = "fastserve-rest"
"""The command of the REST front."""
LOOPBACK = ("127.", "localhost", "[::1]")
STAND_IN = "1"
"""For what only a running pod knows: its number, its processors."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload's object, and the template of its pods."""

    manifest: Manifest
    pod: Mapping[str, Any]
    serves: bool = True
    """False: ranks that only their leader talks to, so they listen nowhere."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its pods."""
        labels: Mapping[str, str] = self.pod.get("metadata", {}).get("labels", {})
        return labels

    @property
    def spec(self) -> Mapping[str, Any]:
        """The pod's spec."""
        spec: Mapping[str, Any] = self.pod["spec"]
        return spec

    @property
    def containers(self) -> Sequence[Mapping[str, Any]]:
        return list(self.spec.get("containers", []))


def of_kind(objects: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in objects if one["kind"] in kinds]


def by_name(objects: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in of_kind(objects, kind)}


def workloads(objects: Sequence[Manifest]) -> Iterator[Workload]:
    """All workloads; a LeaderWorkerSet has one for each of its templates."""
    for one in of_kind(objects, *WORKLOADS):
        if one["kind"] == "LeaderWorkerSet":
            template = one["spec"]["leaderWorkerTemplate"]
            for part in ("leaderTemplate", "workerTemplate"):
                if part in template:
                    yield Workload(one, template[part], serves=part == "leaderTemplate")
        else:
            yield Workload(one, one["spec"]["template"])


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector of `matchLabels` chooses these labels."""
    wanted = (selector or {}).get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def service_of(container: Mapping[str, Any]) -> str | None:
    """The service of ours that a container runs: by its command, or else by its image."""
    command = container.get("command", [])
    if command:
        return command[1] if command[0] == "fastserve" and command[1:2] and command[1] in SERVICES else None
    found = re.fullmatch(r"(?:.*/)?fastserve/(\w+)(?:[:@].*)?", str(container.get("image", "")))
    return found[1] if found and found[1] in SERVICES else None


def _value(entry: Mapping[str, Any], maps: Mapping[str, Manifest]) -> str:
    source = entry.get("valueFrom")
    if source is None:
        return str(entry.get("value", ""))
    if "configMapKeyRef" in source:
        reference = source["configMapKeyRef"]
        return str(maps[reference["name"]]["data"][reference["key"]])
    return STAND_IN


def environment(container: Mapping[str, Any], objects: Sequence[Manifest]) -> dict[str, str]:
    """The container's variables. Raises KeyError for a map that is not there."""
    maps = by_name(objects, "ConfigMap")
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        values.update(maps[source["configMapRef"]["name"]].get("data", {}))
    values.update({entry["name"]: _value(entry, maps) for entry in container.get("env", [])})
    return values


def _config_text(path: str, workload: Workload, container: Mapping[str, Any], objects: Sequence[Manifest]) -> str:
    """The file that a container finds at this path. Raises KeyError."""
    maps = by_name(objects, "ConfigMap")
    volumes = {one["name"]: one for one in workload.spec.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        if Path(mount["mountPath"]) == Path(path).parent:
            return str(maps[volumes[mount["name"]]["configMap"]["name"]]["data"][Path(path).name])
    raise KeyError(f"no volume holds {path}")


def settings_of(workload: Workload, container: Mapping[str, Any], objects: Sequence[Manifest]) -> Settings:
    """What the service would start with, read by the service's own code.

    Raises InvalidFieldError as the service would, and for a variable that no service knows; KeyError for a map, key or
    file that is not there.
    """
    service = service_of(container)
    assert service is not None, container.get("image")
    values = environment(container, objects)
    _check_variables(service, container, values)
    flags = parse_flags(SERVICES[service], [str(word) for word in container.get("args", [])], f"fastserve {service}")
    path = values.pop(f"{ENVIRONMENT_PREFIX}CONFIG", None)
    if path is None:
        return resolve(SERVICES[service], service, flags, values)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(_config_text(path, workload, container, objects))
        file.flush()
        return resolve(SERVICES[service], service, flags, values, Path(file.name))


def started(objects: Sequence[Manifest]) -> Iterator[tuple[Workload, Mapping[str, Any], Settings]]:
    """Every container of ours with the settings it would start with; those that are refused are left out."""
    for workload in workloads(objects):
        for container in workload.containers:
            if service_of(container):
                try:
                    yield workload, container, settings_of(workload, container, objects)
                except (InvalidFieldError, KeyError):
                    continue


def _check_variables(service: str, container: Mapping[str, Any], values: Mapping[str, str]) -> None:
    own = {entry["name"] for entry in container.get("env", [])}
    for variable in values:
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == f"{ENVIRONMENT_PREFIX}CONFIG":
            continue
        # A map that several containers take may hold what only some of them read.
        readers = {service} if variable in own else set(SERVICES)
        known = {
            name.upper()
            for reader in readers
            for field in SERVICES[reader].model_fields
            for name in (f"{ENVIRONMENT_PREFIX}{field}", f"{ENVIRONMENT_PREFIX}{reader}_{field}")
        }
        if variable not in known:
            raise InvalidFieldError(variable, "there is no such setting")


def front_flags() -> frozenset[str]:
    """The flags of the REST front, from its source: it is a Go program."""
    source = (ROOT / "rest" / "main.go").read_text(encoding="utf-8")
    return frozenset(re.findall(r'flags\.\w+Var\([^,]+, "([\w-]+)"', source))


def fronts(objects: Sequence[Manifest]) -> Iterator[tuple[Workload, Mapping[str, Any], dict[str, str]]]:
    """Every REST front with the flags that it is given."""
    for workload in workloads(objects):
        for front in (one for one in workload.containers if one.get("command") == [FRONT]):
            yield workload, front, dict(word.lstrip("-").split("=", 1) for word in front.get("args", []))


def ports_of(container: Mapping[str, Any]) -> dict[str, int]:
    """By name."""
    return {one["name"]: one["containerPort"] for one in container.get("ports", [])}


def probed_at(settings: Settings) -> int:
    """The port where probes are answered, which have no TLS."""
    listen = getattr(settings, "probe_listen", None)
    return listens_on(settings)[1] if listen is None else split_address(listen).port


def listens_on(settings: Settings) -> tuple[str, int]:
    """Host and port of the service's gRPC server."""
    if isinstance(settings, GatewaySettings):
        return settings.host, settings.grpc_port
    if isinstance(settings, WorkerSettings):
        return split_address(settings.health_listen)
    assert isinstance(settings, AutoscaleSettings | KvManagerSettings | SchedulerSettings)
    return split_address(settings.listen)


def behind(service: Manifest, objects: Sequence[Manifest]) -> list[Workload]:
    """The workloads that a Service leads to: those it selects, or those of which one writes itself into it."""
    selector = service["spec"].get("selector")
    found = list(workloads(objects))
    if selector is not None:
        return [one for one in found if matches({"matchLabels": selector}, one.labels)]
    flag = f"--leader-service={service['metadata']['name']}"
    return [one for one in found if any(flag in container.get("args", []) for container in one.containers)]


def dials(settings: Settings) -> list[str]:
    """HOST:PORT of the peers that it dials."""
    return [address for name in ("scheduler", "kv_manager") if (address := getattr(settings, name, None))]
