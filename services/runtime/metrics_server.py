"""The /metrics endpoint of a service: a registry of its own with the process's figures, and a small HTTP server."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

from services.domain.errors import AddressInUseError
from services.runtime.settings import bare_host, join_address


def new_registry() -> CollectorRegistry:
    """A registry that holds memory, CPU time, open files and garbage collections of this process already."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsServer:
    """Serves `GET /metrics` from a daemon thread, in which it calls the collectors of the registry once a scrape."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Listens at once; port 0 takes a free one. Raises AddressInUseError."""
        try:
            self._server, self._thread = start_http_server(port, bare_host(host), registry)
        except OSError as error:
            reason = error.strerror or error
            raise AddressInUseError(f"can't serve metrics on {join_address(host, port)}: {reason}") from None
        self.port: int = self._server.server_port
        self.address = join_address(host, self.port)

    def stop(self) -> None:
        """Closes the port and ends the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)
