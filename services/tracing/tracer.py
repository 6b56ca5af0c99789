"""Spans by OpenTelemetry's SDK, exported by OTLP as the standard OTEL_* variables say; off unless they ask for it.

One trace a request. The gateway's span is its root, or a child of the client's; the scheduler's span of each job is its
child, and below that are stretches of the job's life, from the scheduler and from the KV manager. The context crosses
the long-lived streams as `traceparent` (W3C Trace Context) beside the messages: the machines never see it, nor do
recordings. A service records intervals and makes spans of them when the job ends, so that a token costs no span.

    OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 fastserve up

OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say which requests are sampled; unset, all are whose parent is, or that
have none. OTEL_EXPORTER_OTLP_PROTOCOL is grpc (the default) or http/protobuf. The SDK sends from a thread of its own
and keeps a bounded number of spans (OTEL_BSP_MAX_QUEUE_SIZE); what a collector does not take is dropped.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from services.domain.errors import InvalidFieldError
from services.tracing.job_spans import Interval
from services.tracing.traceparent import TRACEPARENT, parent_of

if TYPE_CHECKING:
    from services.tracing.span_maker import SpanMaker

CARRIED = (TRACEPARENT, "tracestate")
"""What a client's metadata may say of the trace that it is part of."""
CLOSE_LIMIT_S = 3.0
"""A service that ends waits so long for a collector to take what is left; the SDK would wait for 30 s."""

MOST_EVENTS = 128
"""Of one span: what happened last."""

Attributes = Mapping[str, Any]

_PROTOCOL_KEYS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINT_KEYS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the variables ask for traces. Raises InvalidFieldError for an exporter that there is not."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    if exporter not in ("", "none", "otlp"):
        raise InvalidFieldError("OTEL_TRACES_EXPORTER", f"must be otlp or none, but is {exporter!r}")
    return exporter == "otlp" or (not exporter and any(environment.get(key) for key in _ENDPOINT_KEYS))


def _exporter(environment: Mapping[str, str]) -> Any:
    key = next((key for key in _PROTOCOL_KEYS if environment.get(key)), "")
    match environment.get(key, "grpc"):
        case "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter()
        case "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

            return OverHttp()
        case other:
            raise InvalidFieldError(key, f"must be grpc or http/protobuf, but is {other!r}")


class OpenSpan:
    """A span that has begun; if it is not sampled, nothing comes of it. Times are in seconds of the service's clock."""

    def __init__(
        self,
        maker: "SpanMaker",
        name: str,
        start_s: float,
        context: Any,
        parent: Any,
        kind: Any,
        attributes: Attributes,
    ) -> None:
        """`context` and `parent` are the SDK's; without a context it is not sampled."""
        self._maker = maker
        self._name = name
        self._start_s = start_s
        self._context = context
        self._parent = parent
        self._kind = kind
        self._attributes = dict(attributes)
        self._events: deque[tuple[str, float]] = deque(maxlen=MOST_EVENTS)
        self._failed = False
        self.traceparent = "" if context is None else f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
        """What makes spans of other services its children; empty if it is not sampled."""

    def set(self, attributes: Attributes) -> None:
        self._attributes.update(attributes)

    def event(self, name: str, now_s: float) -> None:
        """Something happened that took no time."""
        self._events.append((name, now_s))

    def fail(self, kind: str) -> None:
        """It ended with an error of this kind; its text may hold what the client wrote, so it stays out."""
        self._attributes["error.type"] = kind
        self._failed = True

    def record(self, intervals: Iterable[Interval]) -> None:
        """Makes a span below this one of each interval."""
        if self._context is not None:
            self._maker.make_all(self._context, intervals)

    def end(self, now_s: float) -> None:
        if self._context is not None:
            times_s = (self._start_s, now_s)
            events = self._events
            self._maker.make(
                self._name, self._context, self._parent, times_s, self._attributes, self._kind, events, self._failed
            )


class Tracer:
    """Makes spans of one service. Sampler, ids, resource, limits, batches and OTLP are the SDK's."""

    def __init__(self, provider: Any, processor: Any, to_ns: int, give_up: Callable[[], None] = lambda: None) -> None:
        """`provider` has the sampler, the ids and the resource; `processor` takes spans that are over. `to_ns` is Unix
        time at 0 of the service's clock, in nanoseconds. `give_up` ends an export under way.
        """
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from services.tracing.span_maker import SpanMaker

        self._api = trace
        self._no_trace = Context()
        self._context_of = TraceContextTextMapPropagator().extract
        self._sampler = provider.sampler
        self._trace_id = provider.id_generator.generate_trace_id
        self._maker = SpanMaker(provider, processor, to_ns)
        self._processor = processor
        self._give_up = give_up

    def serve(self, name: str, metadata: Mapping[str, str], now_s: float, attributes: Attributes) -> OpenSpan:
        """The span of a request, a child of what the client's metadata names."""
        carried = {key: metadata[key] for key in CARRIED if key in metadata}
        above = self._context_of(carried, self._no_trace) if carried else self._no_trace
        return self._open(name, above, self._api.SpanKind.SERVER, now_s, attributes)

    def begin(self, name: str, traceparent: str, now_s: float, attributes: Attributes) -> OpenSpan:
        """A span below that of another service."""
        return self._open(name, self._above(traceparent), self._api.SpanKind.INTERNAL, now_s, attributes)

    def record(self, traceparent: str, intervals: Sequence[Interval]) -> None:
        """Makes a span of each interval, below that of another service."""
        if not intervals:
            return
        above = self._above(traceparent)
        parent = self._api.get_current_span(above).get_span_context()
        if not parent.is_valid:
            return
        if self._sampler.should_sample(above, parent.trace_id, intervals[0].name).decision.is_sampled():
            self._maker.make_all(parent, intervals)

    def _open(self, name: str, above: Any, kind: Any, now_s: float, attributes: Attributes) -> OpenSpan:
        parent = self._api.get_current_span(above).get_span_context()
        is_root = not parent.is_valid
        trace_id = self._trace_id() if is_root else parent.trace_id
        result = self._sampler.should_sample(above, trace_id, name, kind, attributes)
        context = self._maker.context(trace_id, result.trace_state) if result.decision.is_sampled() else None
        return OpenSpan(self._maker, name, now_s, context, None if is_root else parent, kind, result.attributes)

    def _above(self, traceparent: str) -> Any:
        """The SDK's context below what a service named; that of no trace if it named none."""
        named = parent_of(traceparent)
        if named is None:
            return self._no_trace
        trace_id, span_id, flags = named
        context = self._api.SpanContext(trace_id, span_id, True, self._api.TraceFlags(flags))
        return self._api.set_span_in_context(self._api.NonRecordingSpan(context), self._no_trace)

    def close(self) -> None:
        """Sends what is left, or drops what takes longer than CLOSE_LIMIT_S. Waits until then."""
        timer = threading.Timer(CLOSE_LIMIT_S, self._give_up)
        timer.daemon = True
        timer.start()
        self._processor.shutdown()
        timer.cancel()


def open_tracer(service: str, environment: Mapping[str, str]) -> Tracer | None:
    """The tracer that the variables ask for, or None, for a service whose clock is time.monotonic. Raises
    InvalidFieldError for one that can't be had.
    """
    if not is_wanted(environment):
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(environment)
    except ModuleNotFoundError:
        raise InvalidFieldError(
            "OTEL_TRACES_EXPORTER", "needs OpenTelemetry's SDK: install fastserve[tracing], or set it to none"
        ) from None
    resource = Resource.create(own_attributes(service, environment))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    return Tracer(provider, BatchSpanProcessor(exporter), time.time_ns() - time.monotonic_ns(), exporter.shutdown)


def own_attributes(service: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What all spans of a service say of it, beside what the variables say, which the SDK reads itself."""
    own = {"service.instance.id": str(uuid.uuid4())}
    stated = environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    if not environment.get("OTEL_SERVICE_NAME") and not any(one.strip().startswith("service.name=") for one in stated):
        own["service.name"] = f"fastserve-{service}"
    return own
