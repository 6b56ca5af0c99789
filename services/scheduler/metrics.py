"""What the scheduler knows, for Prometheus: read from one status per scrape. What a client feels (times to tokens,
finish reasons) is the gateway's, and how a worker spends its time the worker's.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.server_status import ServerStatus
from services.runtime.status_metrics import LABELS, PREFIX, group_gauges, iteration_token_histogram

SERVER_GROUP = 0
"""The `group` label of figures that are the whole server's."""

_COUNTERS = (
    ("num_preemptions", "Times a job left the running batch before its end.", "preemptions"),
    ("num_promotions", "Jobs lifted to the highest level.", "promotions"),
    ("num_demotions", "Jobs lowered a level.", "demotions"),
    ("num_iterations", "Iterations finished.", "iterations"),
    ("recomputed_tokens", "Tokens whose KV cache was made again.", "recomputed_tokens"),
    ("kv_offloaded_bytes", "Bytes copied from device to host.", "offloaded_bytes"),
    ("kv_uploaded_bytes", "Bytes copied from host to device.", "uploaded_bytes"),
)


class SchedulerCollector(Collector):
    """`read` gives the status, or None where the scheduler is too busy to answer."""

    def __init__(self, read: Callable[[], ServerStatus | None]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        status = self._read()
        if status is None:
            return
        yield from group_gauges(status.model, status.groups)
        labels = (status.model, str(SERVER_GROUP))
        for name, text, field in _COUNTERS:
            family = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
            family.add_metric(labels, getattr(status.counters, field))
            yield family
        rejections = CounterMetricFamily(
            PREFIX + "admission_rejections", "Jobs that were not admitted.", labels=(*LABELS, "reason")
        )
        for reason, count in sorted(status.rejections.items()):
            rejections.add_metric((*labels, reason), count)
        yield rejections
        yield iteration_token_histogram(status.model, SERVER_GROUP, status.iteration_tokens)
