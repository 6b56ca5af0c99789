"""The gateway's part of a request's trace: the span of the call, and that of tokenizing.

The span of the call that is being handled is in a context variable, so that the driver, which opens requests for
several kinds of calls, finds it there. A task inherits it from the one that made it. The log names a trace that the
client is in, or that is sampled, beside all that is said of the call.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from services.domain.generation import EndReason, GenerateRequest
from services.runtime.logs import log_about
from services.tracing.job_spans import Interval
from services.tracing.traceparent import TRACEPARENT, trace_id_of
from services.tracing.tracer import CARRIED, OpenSpan, Tracer

TOKENIZE = "fastserve.tokenize"
MOST_FINISH_REASONS = 128
"""As many choices as a request may have."""


class RequestTrace:
    """The span of one call."""

    def __init__(self, span: OpenSpan, clock: Any) -> None:
        self._span = span
        self._clock = clock
        self._began_s: float = clock()
        self._first_token_s: float | None = None
        self._input_tokens = 0
        self._output_tokens = 0
        self._finishes: list[str] = []

    @property
    def traceparent(self) -> str:
        """For the scheduler; empty if the request is not sampled."""
        return self._span.traceparent

    def opened(self, request: GenerateRequest, request_id: str) -> None:
        """What was asked for, but neither prompt nor stop strings."""
        sampling = request.sampling
        asked = {
            "gen_ai.response.id": request_id,
            "gen_ai.request.max_tokens": sampling.max_tokens_or_default,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.choice.count": sampling.choice_count,
        }
        self._span.set({name: value for name, value in asked.items() if value is not None})

    def tokenized(self, start_s: float, end_s: float, tokens: int) -> None:
        """A prompt became tokens."""
        self._input_tokens += tokens
        self._span.record((Interval(TOKENIZE, start_s, end_s, {"fastserve.tokens": tokens}),))

    def ended(self, finish: EndReason, output_tokens: int, first_token_s: float | None) -> None:
        """A choice has ended, which made its first token at this time."""
        self._output_tokens += output_tokens
        if first_token_s is not None:
            self._first_token_s = min(first_token_s, self._first_token_s or first_token_s)
        if len(self._finishes) < MOST_FINISH_REASONS:
            self._finishes.append(finish.value)

    def close(self, error: BaseException | None) -> None:
        """The call is over."""
        self._span.set(
            {
                "gen_ai.usage.input_tokens": self._input_tokens,
                "gen_ai.usage.output_tokens": self._output_tokens,
                "gen_ai.response.finish_reasons": tuple(self._finishes),
            }
        )
        if self._first_token_s is not None:
            self._span.set({"fastserve.time_to_first_token_s": self._first_token_s - self._began_s})
        if error is not None:
            self._span.fail(type(error).__name__)
        self._span.end(self._clock())


_PRESENT: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def present_trace() -> RequestTrace | None:
    """That of the call that is being handled, if it is sampled."""
    return _PRESENT.get()


def _log_trace(traceparent: str) -> None:
    """What the present task logs from now on is about this trace, if it is one."""
    trace_id = trace_id_of(traceparent)
    if trace_id is not None:
        log_about(trace_id=trace_id)


class RequestTraces:
    """Begins the traces of calls. Without a tracer there are none."""

    def __init__(self, tracer: Tracer | None, model: str, clock: Any) -> None:
        self._tracer = tracer
        self._model = model
        self._clock = clock

    @contextmanager
    def call(self, operation: str, metadata: Iterable[tuple[str, Any]]) -> Iterator[None]:
        """While a call is handled. `operation` is a gen_ai.operation.name."""
        carried = {key: str(value) for key, value in metadata if key in CARRIED}
        _log_trace(carried.get(TRACEPARENT, ""))
        if self._tracer is None:
            yield
            return
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "fastserve",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
        }
        span = self._tracer.serve(f"{operation} {self._model}", carried, self._clock(), attributes)
        if not span.traceparent:
            span.end(self._clock())
            yield
            return
        _log_trace(span.traceparent)
        trace = RequestTrace(span, self._clock)
        token = _PRESENT.set(trace)
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            _PRESENT.reset(token)
            trace.close(failure)
