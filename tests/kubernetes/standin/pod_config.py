"""What a pod's spec means to a container runtime: names, volumes, variables, limits, privileges."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.standin.api_objects import ApiClient, Manifest, WatchedObjects
from tests.kubernetes.standin.cri_stubs import Cri

UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


class NotThereError(Exception):
    """The pod needs an object that is not there yet."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the stand-in for a kubelet was started with."""

    folder: Path
    nodes: tuple[str, ...]
    gateway: str
    cgroup: str


def amount(quantity: Any) -> float:
    """`500m`, `2Gi`, 1 as a number."""
    found = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", str(quantity))
    assert found, quantity
    return float(found[1]) * UNITS[found[2]]


class PodConfig:
    """The messages for one pod. `ip` is known once its sandbox runs."""

    def __init__(self, pod: Manifest, api: ApiClient, objects: WatchedObjects, facts: NodeFacts) -> None:
        self._meta, self._spec = pod["metadata"], pod["spec"]
        self._api, self._objects, self._facts = api, objects, facts
        self.namespace: str = self._meta["namespace"]
        self.name: str = self._meta["name"]
        self._folder = facts.folder / "pods" / self._meta["uid"]
        self.logs = self._folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.ip = ""

    def sandbox(self) -> Any:
        options = Cri.NamespaceOption(pid=Cri.CONTAINER)
        searches = [f"{self.namespace}.svc.cluster.local", "svc.cluster.local", "cluster.local"]
        return Cri.PodSandboxConfig(
            metadata=Cri.PodSandboxMetadata(name=self.name, uid=self._meta["uid"], namespace=self.namespace),
            hostname=self._spec.get("hostname") or self.name,
            log_directory=str(self.logs),
            dns_config=Cri.DNSConfig(servers=[self._facts.gateway], searches=searches, options=["ndots:5"]),
            linux=Cri.LinuxPodSandboxConfig(
                cgroup_parent=f"/{self._facts.cgroup}/{self._meta['uid']}",
                security_context=Cri.LinuxSandboxSecurityContext(namespace_options=options),
            ),
        )

    def container(self, container: Manifest, attempt: int) -> Any:
        """Raises NotThereError."""
        values = self._variables(container)

        def expand(text: str) -> str:
            return re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)

        return Cri.ContainerConfig(
            metadata=Cri.ContainerMetadata(name=container["name"], attempt=attempt),
            image=Cri.ImageSpec(image=container["image"]),
            command=[expand(word) for word in container.get("command", [])],
            args=[expand(word) for word in container.get("args", [])],
            envs=[Cri.KeyValue(key=name, value=expand(value).encode()) for name, value in values.items()],
            mounts=self._mounts(container),
            log_path=f"{container['name']}.{attempt}.log",
            linux=Cri.LinuxContainerConfig(resources=_resources(container), security_context=self._security(container)),
        )

    def _variables(self, container: Manifest) -> dict[str, str]:
        host, _, port = self._api.server.removeprefix("https://").rpartition(":")
        values = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        for source in container.get("envFrom", []):
            values.update(self._map(source["configMapRef"]["name"]))
        for entry in container.get("env", []):
            values[entry["name"]] = self._value(entry, container)
        return values

    def _value(self, entry: Manifest, container: Manifest) -> str:
        source = entry.get("valueFrom")
        if source is None:
            return str(entry.get("value", ""))
        if "configMapKeyRef" in source:
            return self._map(source["configMapKeyRef"]["name"])[source["configMapKeyRef"]["key"]]
        if "resourceFieldRef" in source:
            part, _, resource = source["resourceFieldRef"]["resource"].partition(".")
            return str(max(1, int(amount(container["resources"][part][resource]))))
        field = source["fieldRef"]["fieldPath"]
        labelled = re.fullmatch(r"metadata\.labels\['(.+)'\]", field)
        if labelled:
            return str(self._meta.get("labels", {}).get(labelled[1], ""))
        known = {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": self.ip}
        return known[field]

    def _map(self, name: str) -> Mapping[str, str]:
        found = self._objects.get("configmaps", self.namespace, name)
        if found is None:
            raise NotThereError(f"configmap {name} not found")
        values: Mapping[str, str] = found.get("data") or {}
        return values

    def _mounts(self, container: Manifest) -> list[Any]:
        volumes = {volume["name"]: volume for volume in self._spec.get("volumes", [])}
        mounts = [
            Cri.Mount(
                container_path=mount["mountPath"],
                host_path=str(self._volume(volumes[mount["name"]])),
                readonly=mount.get("readOnly", False),
            )
            for mount in container.get("volumeMounts", [])
        ]
        if self._spec.get("automountServiceAccountToken", True):
            token = self._folder / "token"
            token.mkdir(exist_ok=True)
            account = self._spec.get("serviceAccountName", "default")
            (token / "token").write_text(f"sa:{self.namespace}:{account}")
            (token / "namespace").write_text(self.namespace)
            shutil.copy(self._api.ca_file, token / "ca.crt")
            mounts.append(Cri.Mount(container_path=TOKEN_FOLDER, host_path=str(token), readonly=True))
        return mounts

    def _volume(self, volume: Manifest) -> Path:
        if "persistentVolumeClaim" in volume:
            claim: Path = self._facts.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            return claim.resolve()
        folder: Path = self._folder / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            for name, text in self._map(volume["configMap"]["name"]).items():
                (folder / name).write_text(text)
            return folder
        assert "emptyDir" in volume, volume
        group = self._spec.get("securityContext", {}).get("fsGroup")
        if group is not None:
            os.chown(folder, -1, group)
            folder.chmod(0o2777)
        return folder

    def _security(self, container: Manifest) -> Any:
        of_pod, own = self._spec.get("securityContext", {}), container.get("securityContext", {})
        profile = (own.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type")
        kinds = Cri.SecurityProfile
        made = Cri.LinuxContainerSecurityContext(
            readonly_rootfs=own.get("readOnlyRootFilesystem", False),
            no_new_privs=not own.get("allowPrivilegeEscalation", True),
            namespace_options=Cri.NamespaceOption(pid=Cri.CONTAINER),
            seccomp=kinds(profile_type=kinds.RuntimeDefault if profile == "RuntimeDefault" else kinds.Unconfined),
        )
        made.capabilities.drop_capabilities.extend(own.get("capabilities", {}).get("drop", []))
        user, group = (own.get(name, of_pod.get(name)) for name in ("runAsUser", "runAsGroup"))
        if user is not None:
            made.run_as_user.value = user
        if group is not None:
            made.run_as_group.value = group
        return made


def _resources(container: Manifest) -> Any:
    limits = container.get("resources", {}).get("limits", {})
    made = Cri.LinuxContainerResources(memory_limit_in_bytes=int(amount(limits.get("memory", 0))))
    if "cpu" in limits:
        made.cpu_period, made.cpu_quota = 100_000, int(amount(limits["cpu"]) * 100_000)
    return made
