"""The usage of the KV manager's pools, read at every scrape."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.server_status import NO_POOLS, PoolUsage
from services.runtime.status_metrics import pool_gauges

GROUP = 0


class PoolCollector(Collector):
    """`read` returns the pools, or None without a worker; it is called from the metrics server's thread."""

    def __init__(self, model_name: str, read: Callable[[], PoolUsage | None]) -> None:
        self._model_name = model_name
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering the collector does not read the pools."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Both pools; empty pools without a worker."""
        yield from pool_gauges(self._model_name, [(GROUP, self._read() or NO_POOLS)])
