"""What the scheduler knows, for Prometheus (NAMES section 1): read from one snapshot per scrape. What a client feels
(times to tokens, finish reasons) is the gateway's, and how a worker spends its time the worker's.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.scheduler.policy.counters import ITERATION_TOKEN_BOUNDS
from services.scheduler.report import GroupReport, ServerReport

PREFIX = "fastserve:"
_LABELS = ("model_name", "group")


def _used(total: int, free: int) -> float:
    return 1.0 - free / total if total else 0.0


class SchedulerCollector(Collector):
    """`read` gives a snapshot, or None where the scheduler is too busy to answer."""

    def __init__(self, read: Callable[[], ServerReport | None]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        report = self._read()
        if report is None:
            return
        for group in report.groups:
            yield from _gauges(report.model, group)
        labels = (report.model, "0")
        counters, worker = report.counters, report.worker
        for name, text, value in (
            ("num_preemptions", "Times a job left the running batch before its end.", counters.preemptions),
            ("num_promotions", "Jobs lifted to the highest level.", counters.promotions),
            ("num_demotions", "Jobs lowered a level.", counters.demotions),
            ("num_iterations", "Iterations finished.", counters.iterations),
            ("recomputed_tokens", "Tokens whose KV cache was made again.", counters.recomputed_tokens),
            ("kv_offloaded_bytes", "Bytes copied from device to host.", worker.offloaded_bytes),
            ("kv_uploaded_bytes", "Bytes copied from host to device.", worker.uploaded_bytes),
        ):
            family = CounterMetricFamily(PREFIX + name, text, labels=_LABELS)
            family.add_metric(labels, value)
            yield family
        rejections = CounterMetricFamily(
            PREFIX + "admission_rejections", "Jobs that were not admitted.", labels=(*_LABELS, "reason")
        )
        for reason, count in sorted(counters.rejections.items()):
            rejections.add_metric((*labels, reason), count)
        yield rejections
        yield _iteration_tokens(labels, counters.iteration_token_counts, counters.iteration_token_sum)


def _gauges(model: str, group: GroupReport) -> Iterator[Metric]:
    labels = (model, str(group.group))
    host_usage = _used(group.host_blocks_total, group.host_blocks_free)
    for name, text, value in (
        ("num_requests_running", "Jobs in an iteration.", group.running),
        ("num_requests_waiting", "Jobs that wait for one.", group.waiting + group.swapped_out),
        ("num_requests_swapped", "Those of them whose KV cache is in host memory.", group.swapped_out),
        (
            "kv_cache_usage_perc",
            "Used part of the device pool.",
            _used(group.device_blocks_total, group.device_blocks_free),
        ),
        ("kv_offload_cpu_cache_usage_perc", "Used part of the host pool.", host_usage),
    ):
        family = GaugeMetricFamily(PREFIX + name, text, labels=_LABELS)
        family.add_metric(labels, value)
        yield family


def _iteration_tokens(labels: tuple[str, str], counts: list[int], whole: int) -> Metric:
    family = HistogramMetricFamily(PREFIX + "iteration_tokens", "Tokens of an iteration.", labels=_LABELS)
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(float, ITERATION_TOKEN_BOUNDS), float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    family.add_metric(labels, buckets, sum_value=whole)
    return family
