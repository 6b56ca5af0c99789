"""How full the KV manager's pools are, read at every scrape."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.server_status import NO_POOLS, PoolUsage
from services.runtime.status_metrics import pool_gauges

GROUP = 0


class PoolCollector(Collector):
    """`read` gives the pools, or None while there is no worker; called from the thread of the metrics server."""

    def __init__(self, model_name: str, read: Callable[[], PoolUsage | None]) -> None:
        self._model_name = model_name
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Both pools; empty ones while there is no worker."""
        yield from pool_gauges(self._model_name, [(GROUP, self._read() or NO_POOLS)])
