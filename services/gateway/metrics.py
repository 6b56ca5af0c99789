"""What the gateway measures, and what it asks the scheduler for when it is scraped.

Durations and token counts are measured here, where clients feel them: once per choice, but prompts and times to first
token's arrival once per request. Running and waiting jobs, pools, preemptions and iterations are the scheduler's: they
are read from it during the scrape, so that they are true at that moment, and left out where it does not answer within a
second.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.work import FinishReason, JobTimings
from services.gateway.policy.status import GroupLoad, IterationTokens, SchedulerLoad

PREFIX = "fastserve:"
_GROUP = "0"
_LABELS = ("model_name", "group")
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
_TOKEN_TIME_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
)  # fmt: skip
_LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680
)  # fmt: skip
_TOKEN_COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


class GatewayMetrics:
    """Everything measured at the gateway, for one model."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        labels = (model_name, _GROUP)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, _LABELS, registry=registry, buckets=buckets).labels(*labels)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its choice's first token.", _FIRST_TOKEN_BUCKETS
        )
        self._token_gap = histogram(
            "inter_token_latency_seconds", "Between two output tokens of a choice.", _TOKEN_TIME_BUCKETS
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "From the first to the last output token, by the tokens after the first.",
            _TOKEN_TIME_BUCKETS,
        )
        self._latency = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its choice's end.", _LATENCY_BUCKETS
        )
        self._queue = histogram(
            "request_queue_time_seconds", "From admission to the first iteration.", _LATENCY_BUCKETS
        )
        self._prefill = histogram(
            "request_prefill_time_seconds", "From the first iteration to the first output token.", _LATENCY_BUCKETS
        )
        self._decode = histogram(
            "request_decode_time_seconds", "From the first output token to the last.", _LATENCY_BUCKETS
        )
        self._prompt_size = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKEN_COUNT_BUCKETS)
        self._output_size = histogram("request_generation_tokens", "Output tokens of a choice.", _TOKEN_COUNT_BUCKETS)
        self._preemptions = histogram("request_num_preemptions", "Preemptions of a choice.", _PREEMPTION_BUCKETS)
        self._prompt_tokens = Counter(
            PREFIX + "prompt_tokens", "Prompt tokens of admitted requests.", _LABELS, registry=registry
        ).labels(*labels)
        self._generation_tokens = Counter(
            PREFIX + "generation_tokens", "Output tokens.", _LABELS, registry=registry
        ).labels(*labels)
        ended = Counter(PREFIX + "request_success", "Ended choices.", (*_LABELS, "finished_reason"), registry=registry)
        self._ended = {reason: ended.labels(*labels, reason) for reason in ("stop", "length", "abort", "error")}
        self.refused = 0
        """Requests refused because the gateway itself was full."""

    def prompt_admitted(self, prompt_tokens: int) -> None:
        """A request's prompt was computed: its first output token is there."""
        self._prompt_tokens.inc(prompt_tokens)
        self._prompt_size.observe(prompt_tokens)

    def first_token(self, since_arrival_s: float) -> None:
        self._first_token.observe(since_arrival_s)

    def token_gap(self, gap_s: float) -> None:
        self._token_gap.observe(gap_s)

    def tokens_made(self, count: int) -> None:
        self._generation_tokens.inc(count)

    def choice_ended(
        self, finish: FinishReason, tokens: int, since_arrival_s: float, decode_s: float, timings: JobTimings | None
    ) -> None:
        """A choice ended well or was aborted. `decode_s` is from its first to its last token, as seen here."""
        self._ended[finish.value].inc()
        self._output_size.observe(tokens)
        self._latency.observe(since_arrival_s)
        if tokens > 1:
            self._per_token.observe(decode_s / (tokens - 1))
        if timings is not None:
            self._queue.observe(timings.queue_s)
            self._prefill.observe(timings.prefill_s)
            self._decode.observe(timings.decode_s)
            self._preemptions.observe(timings.preemptions)

    def choice_failed(self) -> None:
        self._ended["error"].inc()


class SchedulerCollector(Collector):
    """The scheduler's figures, read during the scrape by `read_load`, which gives None where there is no answer."""

    def __init__(
        self, model_name: str, read_load: Callable[[], SchedulerLoad | None], gateway_refused: Callable[[], int]
    ) -> None:
        self._model_name = model_name
        self._read_load = read_load
        self._gateway_refused = gateway_refused

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry that is set up must not ask the scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        load = self._read_load()
        rejections = CounterMetricFamily(
            PREFIX + "admission_rejections", "Jobs refused for want of room.", labels=(*_LABELS, "reason")
        )
        rejections.add_metric((self._model_name, _GROUP, "gateway_full"), self._gateway_refused())
        if load is not None:
            rejections.add_metric((self._model_name, _GROUP, "queue_full"), load.admission_rejections)
            preemptions = CounterMetricFamily(PREFIX + "num_preemptions", "Preemptions.", labels=_LABELS)
            preemptions.add_metric((self._model_name, _GROUP), load.preemptions)
            yield preemptions
            yield from self._gauges(load.groups)
            yield self._iterations(load.iteration_tokens)
        yield rejections

    def _gauges(self, groups: tuple[GroupLoad, ...]) -> Iterator[Metric]:
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(PREFIX + name, text, labels=_LABELS)
            for group in groups:
                family.add_metric((self._model_name, str(group.group)), value(group))
            yield family

    def _iterations(self, tokens: IterationTokens) -> Metric:
        family = HistogramMetricFamily(PREFIX + "iteration_tokens", "Tokens of an iteration.", labels=_LABELS)
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*tokens.bounds, float("inf")), tokens.counts, strict=False):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        if buckets:
            family.add_metric((self._model_name, _GROUP), buckets, tokens.sum)
        return family


def _used_share(free: int, total: int) -> float:
    return 1.0 - free / total if total else 0.0


_GAUGES: tuple[tuple[str, str, Callable[[GroupLoad], float]], ...] = (
    ("num_requests_running", "Jobs in an iteration under way.", lambda group: group.running),
    (
        "num_requests_waiting",
        "Jobs that wait for an iteration, those in host memory among them.",
        lambda group: group.waiting + group.swapped_out,
    ),
    ("num_requests_swapped", "Waiting jobs whose KV cache is in host memory.", lambda group: group.swapped_out),
    (
        "kv_cache_usage_perc",
        "Used share of the device's KV pool: 0 to 1.",
        lambda group: _used_share(group.device_blocks_free, group.device_blocks_total),
    ),
    (
        "kv_offload_cpu_cache_usage_perc",
        "Used share of the host's KV pool: 0 to 1.",
        lambda group: _used_share(group.host_blocks_free, group.host_blocks_total),
    ),
)
