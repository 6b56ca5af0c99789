"""The scheduler's Prometheus metrics, read from one status per scrape: jobs, and what was decided about them. The
gateway exports what clients experience (times to tokens, finish reasons), the KV manager the pools, the worker how it
spends its time.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.server_status import ServerStatus
from services.runtime.status_metrics import (
    LABELS,
    PREFIX,
    group_gauge,
    iteration_token_histogram,
    job_gauges,
    level_gauge,
    pool_gauges,
)
from services.scheduler.machine.scheduler_events import RejectKind

SERVER_GROUP = 0
"""The `group` label of what no group does: a refusal comes before a group is chosen."""

_NO_REJECTIONS = {kind.value: 0 for kind in RejectKind}
_COUNTERS = (
    ("num_preemptions", "Number of times a job left the running batch before it ended.", "preemptions"),
    ("num_promotions", "Number of promotions of a job to the highest level.", "promotions"),
    ("num_demotions", "Number of demotions of a job to a lower level.", "demotions"),
    ("num_iterations", "Number of finished iterations.", "iterations"),
    ("recomputed_tokens", "Tokens whose KV cache was computed again.", "recomputed_tokens"),
    ("kv_offloaded_bytes", "KV cache bytes copied from the device to the host.", "offloaded_bytes"),
    ("num_job_moves", "Number of times a job left the group for another one.", "moves"),
    ("kv_uploaded_bytes", "KV cache bytes copied from the host to the device.", "uploaded_bytes"),
)


class SchedulerCollector(Collector):
    """`read` returns the status, or None if the scheduler is too busy to answer. `old_metrics`: also the pools, which
    are the KV manager's to tell.
    """

    def __init__(self, read: Callable[[], ServerStatus | None], *, old_metrics: bool = False) -> None:
        self._read = read
        self._old_metrics = old_metrics

    def describe(self) -> Iterable[Metric]:
        """Empty, so that registering the collector does not read the status."""
        return ()

    def collect(self) -> Iterator[Metric]:
        status = self._read()
        if status is None:
            return
        groups = status.groups
        yield from job_gauges(status.model, groups)
        yield level_gauge(status.model, groups)
        batches = [(status.model, group.group, group.max_batch) for group in groups]
        yield group_gauge("max_batch", "Most jobs that an iteration may have.", batches)
        yield from _coming_and_going(status)
        if self._old_metrics:
            yield from pool_gauges(status.model, [(group.group, group.pools) for group in groups])
        for name, text, field in _COUNTERS:
            family = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
            for group in groups:
                family.add_metric((status.model, str(group.group)), getattr(group.counters, field))
            yield family
        labels = (status.model, str(SERVER_GROUP))
        rejections = CounterMetricFamily(
            PREFIX + "admission_rejections", "Number of jobs that were not admitted.", labels=(*LABELS, "reason")
        )
        for reason, count in sorted((_NO_REJECTIONS | dict(status.rejections)).items()):
            rejections.add_metric((*labels, reason), count)
        yield rejections
        yield iteration_token_histogram(status.model, [(group.group, group.iteration_tokens) for group in groups])


def _coming_and_going(status: ServerStatus) -> Iterator[Metric]:
    """Groups that are about to end, and jobs that wait for one to come."""
    draining = [(status.model, group.group, group.draining) for group in status.groups]
    text = "Whether the group's worker was told to end: it gets no new jobs."
    yield group_gauge("group_draining", text, draining)
    unplaced = GaugeMetricFamily(
        PREFIX + "num_requests_unplaced", "Number of jobs that wait for a worker group.", labels=("model_name",)
    )
    unplaced.add_metric((status.model,), status.unplaced_jobs)
    yield unplaced
