"""The cluster's name server: addresses of Services, and of the pods behind headless ones."""

from typing import Any

from dnslib import QTYPE, RR, A
from dnslib.server import BaseResolver, DNSLogger, DNSServer

from tests.kubernetes.standin.api_objects import WatchedObjects, is_leaving, is_ready
from tests.kubernetes.standin.controllers import selected_by

NO_SUCH_NAME = 3
LIFE_S = 5


class ClusterNames(BaseResolver):  # type: ignore[misc]
    """NAME.NAMESPACE.svc, and POD.NAME.NAMESPACE.svc; ready pods only, unless the Service says otherwise."""

    def __init__(self, objects: WatchedObjects) -> None:
        self._objects = objects

    def resolve(self, request: Any, handler: Any) -> Any:
        """Called by the server, on its thread."""
        reply = request.reply()
        found = self._addresses(str(request.q.qname).rstrip(".").removesuffix(".cluster.local"))
        if not found:
            reply.header.rcode = NO_SUCH_NAME
        elif request.q.qtype in (QTYPE.A, QTYPE.ANY):
            for address in found:
                reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(address), ttl=LIFE_S))
        return reply

    def _addresses(self, name: str) -> list[str]:
        parts = name.split(".")
        if len(parts) not in (3, 4) or parts[-1] != "svc":
            return []
        service = self._objects.get("services", parts[-2], parts[-3])
        if service is None:
            return []
        address = service["spec"].get("clusterIP", "None")
        if address != "None":
            return [address] if len(parts) == 3 else []
        return [
            str(pod["status"]["podIP"])
            for pod in selected_by(service, self._objects.all("pods"))
            if (len(parts) == 3 or pod["spec"].get("hostname") == parts[0])
            and (service["spec"].get("publishNotReadyAddresses") or (is_ready(pod) and not is_leaving(pod)))
        ]


def serve_names(objects: WatchedObjects, address: str) -> None:
    """On a thread of its own, until the process ends."""
    log = DNSLogger(log="-request,-reply,-truncated,-error")
    DNSServer(ClusterNames(objects), logger=log, address=address, port=53).start_thread()
