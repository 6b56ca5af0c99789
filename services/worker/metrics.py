"""What a worker's /metrics shows besides its process: the counters of its engine, read at each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.domain.iteration import WorkerCounters

_LABELS = ("model_name", "group")
_COUNTERS = (
    ("stall_seconds", "Time with a plan at hand, waiting for a copy of one of its jobs.", "stall_s"),
    ("busy_seconds", "Time spent in iterations.", "busy_s"),
    ("plan_wait_seconds", "Time with unfinished jobs and no plan at hand.", "plan_wait_s"),
    ("offloaded_bytes", "KV copied from the device pool to the host pool.", "offloaded_bytes"),
    ("uploaded_bytes", "KV copied from the host pool to the device pool.", "uploaded_bytes"),
)


class EngineCollector(Collector):
    """The counters, and how many epochs the worker has begun, which users know as its lives."""

    def __init__(
        self, model_name: str, group: int, counters: Callable[[], WorkerCounters], epochs_begun: Callable[[], int]
    ) -> None:
        self._labels = (model_name, str(group))
        self._counters = counters
        self._epochs_begun = epochs_begun

    def collect(self) -> Iterator[CounterMetricFamily]:
        counters = self._counters()
        for name, text, field in _COUNTERS:
            yield self._family(name, text, getattr(counters, field))
        yield self._family("lives", "Epochs begun: 1, and one more each time a stream was lost.", self._epochs_begun())

    def _family(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"fastserve:worker_{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family
