"""What must hold of a rendering's TLS: pure functions from objects to faults, as in assertions.py."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.manifests.pods import (
    LOOPBACK,
    Workload,
    behind,
    by_name,
    fronts,
    of_kind,
    ports_of,
    probed_at,
    started,
)
from deploy.manifests.rendering import Manifest
from services.gateway.settings import GatewaySettings
from services.runtime.tls.tls_files import TlsFiles
from services.runtime.tls.tls_settings import ServedTlsSettings, TlsSettings

WITH_TLS = "https"
"""The appProtocol of a Service's port where TLS is spoken, whatever is inside."""
SERVED = ("grpc", "http")
"""Names of the ports that clients and services dial."""

Objects = Sequence[Manifest]


def _unmounted(workload: Workload, container: Mapping[str, Any], files: Iterable[Path]) -> Iterator[str]:
    """A file that a container is told to read is in a Secret, mounted where it is looked for."""
    secrets = {one["name"] for one in workload.spec.get("volumes", []) if "secret" in one}
    mounted = {Path(one["mountPath"]) for one in container.get("volumeMounts", []) if one["name"] in secrets}
    for file in files:
        if file.parent not in mounted:
            yield f"{workload.name}: {container['name']} reads {file}, and no Secret is mounted there"


def _files(files: TlsFiles) -> list[Path]:
    return [path for _, path in files.named]


def _service_faults(objects: Objects) -> Iterator[str]:
    """Services speak TLS with each other all or none, and answer probes without it."""
    speaks: dict[str, bool] = {}
    for workload, container, settings in started(objects):
        if not isinstance(settings, TlsSettings):
            continue
        speaks[workload.name] = settings.tls is not None
        if settings.tls is None:
            continue
        yield from _unmounted(workload, container, _files(settings.tls))
        if isinstance(settings, ServedTlsSettings):
            if settings.probe_listen is None or settings.probe_listen.startswith(LOOPBACK):
                yield f"{workload.name}: speaks TLS where it is probed, and probes do not"
            elif ports_of(container).get("probe") != probed_at(settings):
                yield f"{workload.name}: is probed at port {probed_at(settings)}, which its container does not name"
    if any(speaks.values()):
        yield from (f"{name}: speaks no TLS, and its peers do" for name, does in speaks.items() if not does)


def _front_faults(objects: Objects) -> Iterator[str]:
    """A REST front speaks TLS if its gateway does, to both sides, and knows the certificate that it sees."""
    shown = {
        workload.name: settings.public_tls
        for workload, _, settings in started(objects)
        if isinstance(settings, GatewaySettings)
    }
    for workload, front, given in fronts(objects):
        files = shown.get(workload.name)
        wanted = None if files is None else str(files.cert)
        if given.get("gateway-cert") != wanted:
            yield f"{workload.name}: its gateway shows {wanted}, and its front expects {given.get('gateway-cert')}"
        if (given.get("tls-cert") is None) != (wanted is None):
            yield f"{workload.name}: of gateway and front only one speaks TLS to clients"
        read = [Path(given[name]) for name in ("gateway-cert", "tls-cert", "tls-key") if name in given]
        yield from _unmounted(workload, front, read)
        scheme = "HTTP" if given.get("tls-cert") is None else "HTTPS"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if front.get(probe, {}).get("httpGet", {}).get("scheme", "HTTP") != scheme:
                yield f"{workload.name}: {probe} of its front does not ask by {scheme}"


def _named_protocol_faults(objects: Objects) -> Iterator[str]:
    """A Service's ports say whether TLS is spoken there; what is in front of it goes by that. Of workers, health alone
    is asked, in plain text.
    """
    speaking = {
        workload.name
        for workload, _, settings in started(objects)
        if isinstance(settings, ServedTlsSettings) and settings.tls is not None
    }
    for service in of_kind(objects, "Service"):
        pods = {one.name for one in behind(service, objects)} & speaking
        for port in service["spec"]["ports"]:
            if port.get("name") in SERVED and "appProtocol" in port and (port["appProtocol"] == WITH_TLS) != bool(pods):
                yield f"Service {service['metadata']['name']}: port {port['name']} is said to be {port['appProtocol']}"


def _scaler_faults(objects: Objects) -> Iterator[str]:
    """KEDA has a certificate to show where the scheduler asks for one."""
    known = by_name(objects, "TriggerAuthentication")
    asks = any(
        isinstance(settings, TlsSettings) and settings.tls is not None and workload.name == "fastserve-scheduler"
        for workload, _, settings in started(objects)
    )
    for one in of_kind(objects, "ScaledObject"):
        for trigger in one["spec"]["triggers"]:
            name = trigger.get("authenticationRef", {}).get("name")
            if asks and name is None:
                yield f"ScaledObject {one['metadata']['name']}: shows the scheduler no certificate"
            elif name is not None and name not in known:
                yield f"ScaledObject {one['metadata']['name']}: there is no TriggerAuthentication {name}"


def tls_faults(objects: Objects) -> Iterator[str]:
    """TLS is everywhere or nowhere, its files are there, and probes go round it."""
    yield from _service_faults(objects)
    yield from _front_faults(objects)
    yield from _named_protocol_faults(objects)
    yield from _scaler_faults(objects)
