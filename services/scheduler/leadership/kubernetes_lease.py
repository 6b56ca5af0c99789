"""The Lease and the EndpointSlice of the leader, through the `kubernetes` package, which only who uses a Lease imports.

Clients dial one Service without a selector. Its EndpointSlice has the leader's address and is written by the leader, so
no label of a pod has to change hands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from kubernetes import client

from services.runtime.api_server_errors import WriteConflictError
from services.runtime.kubernetes_api import api_call, connect
from services.scheduler.leadership.election import LeaseRecord

MANAGER = "fastserve-scheduler"

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where the leader is found: `service` is the Service's name, `ports` those of the slice by name."""

    service: str
    host: str
    ports: tuple[tuple[str, int], ...]


class KubernetesLease:
    """A LeaseStore in the pod's namespace."""

    def __init__(self, name: str, address: LeaderAddress | None) -> None:
        """Raises InvalidFieldError outside of a pod."""
        self._namespace = connect("--lease")
        self._name = name
        self._address = address
        self._leases = client.CoordinationV1Api()
        self._slices = client.DiscoveryV1Api()

    async def read(self) -> LeaseRecord | None:
        """The Lease; None if there is none."""
        found = await self._call("get", "leases", lambda: self._leases.read_namespaced_lease(*self._place()))
        return None if found is None else _record(found)

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        """Create the Lease, or replace the version that was read."""
        lease = self._lease(record)
        if record.version:
            written = await self._call(
                "update", "leases", lambda: self._leases.replace_namespaced_lease(*self._place(), lease)
            )
        else:
            written = await self._call(
                "create", "leases", lambda: self._leases.create_namespaced_lease(self._namespace, lease)
            )
        if written is None:
            raise WriteConflictError("the Lease was deleted")
        return _record(written)

    async def publish(self) -> None:
        """Write the EndpointSlice of the Service."""
        if self._address is None:
            return
        name = f"{self._address.service}-leader"
        body = self._slice(name, self._address)
        patch = {
            "endpoints": body["endpoints"],
            "ports": body["ports"],
            "metadata": {"labels": body["metadata"]["labels"]},
        }
        slices, namespace = self._slices, self._namespace
        there = await self._call(
            "patch", "endpointslices", lambda: slices.patch_namespaced_endpoint_slice(name, namespace, patch)
        )
        if there is None:
            await self._call(
                "create", "endpointslices", lambda: slices.create_namespaced_endpoint_slice(namespace, body)
            )

    def _place(self) -> tuple[str, str]:
        return self._name, self._namespace

    def _lease(self, record: LeaseRecord) -> Any:
        now = datetime.now(UTC)
        # client-go reads no time without its microseconds, and Python leaves out 0.
        now = now.replace(microsecond=now.microsecond or 1)
        return client.V1Lease(
            metadata=client.V1ObjectMeta(
                name=self._name, namespace=self._namespace, resource_version=record.version or None
            ),
            spec=client.V1LeaseSpec(
                holder_identity=record.holder,
                lease_duration_seconds=record.duration_s,
                acquire_time=record.acquired or now,
                renew_time=now,
                lease_transitions=record.transitions,
            ),
        )

    def _slice(self, name: str, address: LeaderAddress) -> Any:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/service-name": address.service,
                    "endpointslice.kubernetes.io/managed-by": MANAGER,
                },
            },
            "addressType": "IPv6" if ":" in address.host else "IPv4",
            "endpoints": [{"addresses": [address.host], "conditions": {"ready": True}}],
            "ports": [{"name": port_name, "port": port, "protocol": "TCP"} for port_name, port in address.ports],
        }

    async def _call(self, verb: str, resource: str, request: Callable[[], AnswerT]) -> AnswerT | None:
        return await api_call(verb, resource, self._namespace, request)


def _record(lease: Any) -> LeaseRecord:
    spec = lease.spec
    return LeaseRecord(
        holder=spec.holder_identity or "",
        duration_s=spec.lease_duration_seconds or 1,
        transitions=spec.lease_transitions or 0,
        renewed=str(spec.renew_time),
        version=lease.metadata.resource_version,
        acquired=spec.acquire_time,
    )
