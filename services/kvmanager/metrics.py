"""The usage of the KV manager's pools, by group, read at every scrape."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.server_status import NO_POOLS, PoolUsage
from services.runtime.status_metrics import pool_gauges


class PoolCollector(Collector):
    """`read` returns each group's pools, None without a worker; it is called from the metrics server's thread."""

    def __init__(self, model_name: str, read: Callable[[], Sequence[tuple[int, PoolUsage | None]]]) -> None:
        self._model_name = model_name
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering the collector does not read the pools."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Both pools of each group; empty pools without a worker."""
        yield from pool_gauges(self._model_name, [(group, pools or NO_POOLS) for group, pools in self._read()])
