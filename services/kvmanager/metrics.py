"""What the KV manager's /metrics shows: the usage of the pools, read at every scrape, and how good its ENSTs were."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.server_status import NO_POOLS, PoolUsage
from services.runtime.status_metrics import LABELS, PREFIX, pool_gauges

_ERROR_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


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


class EnstErrorHistogram:
    """The errors of ENST, told apart by whether the job came early or late."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._model_name = model_name
        self._errors = Histogram(
            PREFIX + "enst_error_seconds",
            "How far the wait of a job was from its ENST: early, it was scheduled sooner than estimated, or late.",
            (*LABELS, "direction"),
            registry=registry,
            buckets=_ERROR_BUCKETS,
        )

    def judged(self, group: int, enst_s: float, waited_s: float) -> None:
        """A job that was estimated to wait for `enst_s` was scheduled after `waited_s`."""
        direction = "late" if waited_s > enst_s else "early"
        self._errors.labels(self._model_name, str(group), direction).observe(abs(waited_s - enst_s))
