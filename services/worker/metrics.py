"""What a worker's /metrics shows besides its process: the counters of its engine, read at each scrape. Of a group of
several ranks they are those of the rank that leads. The bytes of all ranks are the scheduler's to tell.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.iteration import WorkerCounters

_LABELS = ("model_name", "group")
_COUNTERS = (
    ("stall_seconds", "Time with a plan at hand, waiting for a copy of one of its jobs.", "stall_s"),
    ("busy_seconds", "Time spent in iterations.", "busy_s"),
    ("plan_wait_seconds", "Time with unfinished jobs and no plan at hand.", "plan_wait_s"),
)
_OLD_COUNTERS = (
    ("offloaded_bytes", "KV copied from the device pool to the host pool.", "offloaded_bytes"),
    ("uploaded_bytes", "KV copied from the host pool to the device pool.", "uploaded_bytes"),
)


class EngineCollector(Collector):
    """The counters, and how many epochs the worker has begun, which users know as its lives. `old_metrics`: also the
    bytes of this rank.
    """

    def __init__(
        self,
        model_name: str,
        group: int,
        counters: Callable[[], WorkerCounters],
        epochs_begun: Callable[[], int],
        *,
        old_metrics: bool = False,
    ) -> None:
        self._labels = (model_name, str(group))
        self._counters = counters
        self._epochs_begun = epochs_begun
        self._shown = (*_COUNTERS, *(_OLD_COUNTERS if old_metrics else ()))

    def collect(self) -> Iterator[Metric]:
        counters = self._counters()
        for name, text, field in self._shown:
            yield self._counter(name, text, getattr(counters, field))
        yield self._counter("lives", "Epochs begun: 1, and one more each time a stream was lost.", self._epochs_begun())
        share = GaugeMetricFamily(
            "fastserve:worker_plan_wait_share",
            "Share of the time with unfinished jobs, since the worker began, in which it waited for a plan, 0 to 1.",
            labels=_LABELS,
        )
        share.add_metric(self._labels, counters.plan_wait_share)
        yield share

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"fastserve:worker_{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family
