"""What the KV manager knows, for Prometheus (NAMES section 1): how full its pools are, read at every scrape."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.kvmanager.policy.messages import PoolFigures

PREFIX = "fastserve:"
_LABELS = ("model_name", "group")


def _used(total: int, free: int) -> float:
    return 1.0 - free / total if total else 0.0


class PoolCollector(Collector):
    """`read` gives the figures, or None while there is no worker; called from the thread of the metrics server."""

    def __init__(self, model_name: str, read: Callable[[], PoolFigures | None]) -> None:
        self._model_name = model_name
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Both pools; empty ones while there is no worker."""
        figures = self._read() or PoolFigures(0, 0, 0, 0)
        for name, text, total, free in (
            (
                "kv_cache_usage_perc",
                "Share of the device pool in use.",
                figures.device_blocks,
                figures.device_blocks_free,
            ),
            (
                "kv_offload_cpu_cache_usage_perc",
                "Share of the host pool in use.",
                figures.host_blocks,
                figures.host_blocks_free,
            ),
        ):
            family = GaugeMetricFamily(PREFIX + name, text, labels=_LABELS)
            family.add_metric((self._model_name, "0"), _used(total, free))
            yield family
