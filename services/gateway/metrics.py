"""What the gateway measures, and what it repeats of the scheduler's figures where it is told to.

Durations and token counts are measured here, as clients see them: once per choice, except that a prompt is counted once
per request. Jobs, pools, preemptions and iterations are told by the services that know them. Two settings have the
gateway repeat them, for those who scrape nothing else: read from the scheduler during the scrape, so that they are
current, and left out if it does not answer within a second.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.domain.generation import EndReason
from services.domain.server_status import ServerStatus
from services.domain.submission import JobTimings
from services.runtime.status_metrics import (
    LABELS,
    PREFIX,
    iteration_token_histogram,
    job_gauges,
    pool_gauges,
    vllm_gauges,
)

_GROUP = 0
"""Clients see one server, so what is measured here is not told apart by group."""
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
    """What the gateway measures, for one model."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        labels = (model_name, str(_GROUP))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, LABELS, registry=registry, buckets=buckets).labels(*labels)

        self._first_token = histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to the first token of a choice.",
            _FIRST_TOKEN_BUCKETS,
        )
        self._token_gap = histogram(
            "inter_token_latency_seconds", "Between two consecutive output tokens of a choice.", _TOKEN_TIME_BUCKETS
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "From the first to the last output token, divided by the number of tokens after the first.",
            _TOKEN_TIME_BUCKETS,
        )
        self._latency = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to the end of a choice.", _LATENCY_BUCKETS
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
        self._prompt_size = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKEN_COUNT_BUCKETS)
        self._output_size = histogram("request_generation_tokens", "Output tokens of a choice.", _TOKEN_COUNT_BUCKETS)
        self._preemptions = histogram("request_num_preemptions", "Preemptions of a choice.", _PREEMPTION_BUCKETS)
        self._prompt_tokens = Counter(
            PREFIX + "prompt_tokens", "Prompt tokens of admitted requests.", LABELS, registry=registry
        ).labels(*labels)
        self._generation_tokens = Counter(
            PREFIX + "generation_tokens", "Output tokens.", LABELS, registry=registry
        ).labels(*labels)
        ended = Counter(PREFIX + "request_success", "Ended choices.", (*LABELS, "finished_reason"), registry=registry)
        self._ended = {reason: ended.labels(*labels, reason) for reason in ("stop", "length", "abort", "error")}
        self.refused = 0
        """Requests refused because the gateway itself was full."""

    def prompt_admitted(self, prompt_tokens: int) -> None:
        """Counts the prompt of a request whose first output token has arrived."""
        self._prompt_tokens.inc(prompt_tokens)
        self._prompt_size.observe(prompt_tokens)

    def first_token(self, since_arrival_s: float) -> None:
        self._first_token.observe(since_arrival_s)

    def token_gap(self, gap_s: float) -> None:
        self._token_gap.observe(gap_s)

    def tokens_made(self, count: int) -> None:
        self._generation_tokens.inc(count)

    def choice_ended(
        self, finish: EndReason, tokens: int, since_arrival_s: float, decode_s: float, timings: JobTimings | None
    ) -> None:
        """Counts a choice that ended normally or was aborted. `decode_s` runs from its first to its last token, as seen
        here.
        """
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


class ServerStatusCollector(Collector):
    """The gateway's refusals, and the scheduler's figures if they are wanted. `read_status` asks for these during the
    scrape and returns None if there is no answer. `old_metrics`: those that the scheduler and the KV manager export;
    `vllm_metrics`: three under vLLM's own names.
    """

    def __init__(
        self,
        model_name: str,
        read_status: Callable[[], ServerStatus | None],
        gateway_refused: Callable[[], int],
        *,
        old_metrics: bool = False,
        vllm_metrics: bool = False,
    ) -> None:
        self._model_name = model_name
        self._read_status = read_status
        self._gateway_refused = gateway_refused
        self._old_metrics = old_metrics
        self._vllm_metrics = vllm_metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing, because registering the collector must not ask the scheduler."""
        return ()

    def collect(self) -> Iterator[Metric]:
        status = self._read_status() if self._old_metrics or self._vllm_metrics else None
        labels = (self._model_name, str(_GROUP))
        rejections = CounterMetricFamily(
            PREFIX + "admission_rejections", "Jobs refused because the server was full.", labels=(*LABELS, "reason")
        )
        rejections.add_metric((*labels, "gateway_full"), self._gateway_refused())
        if status is not None and self._vllm_metrics:
            yield from vllm_gauges(self._model_name, status.groups)
        if status is not None and self._old_metrics:
            rejections.add_metric((*labels, "queue_full"), status.admission_rejections)
            yield from self._repeated(status)
        yield rejections

    def _repeated(self, status: ServerStatus) -> Iterator[Metric]:
        """What the scheduler and the KV manager export too."""
        preemptions = CounterMetricFamily(PREFIX + "num_preemptions", "Preemptions.", labels=LABELS)
        preemptions.add_metric((self._model_name, str(_GROUP)), status.counters.preemptions)
        yield preemptions
        yield from job_gauges(self._model_name, status.groups)
        yield from pool_gauges(self._model_name, [(group.group, group.pools) for group in status.groups])
        yield iteration_token_histogram(self._model_name, [(_GROUP, status.iteration_tokens)])
