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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from services.domain.errors import InvalidFieldError
from services.tracing.job_spans import Interval
from services.tracing.traceparent import MOST_TRACEPARENT_CHARACTERS, TRACEPARENT

CARRIED = (TRACEPARENT, "tracestate")
"""What a client's metadata may say of the trace that it is part of."""
CLOSE_LIMIT_S = 3.0
"""A service that ends waits so long for a collector to take what is left; the SDK would wait for 30 s."""

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
    """A span that has begun. Times are in seconds of the service's clock."""

    def __init__(self, span: Any, to_ns: int) -> None:
        self._span = span
        self._to_ns = to_ns

    @property
    def traceparent(self) -> str:
        """What makes spans of other services its children; empty if it is not sampled."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if context.trace_flags.sampled else ""

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, now_s: float) -> None:
        """Something happened that took no time."""
        self._span.add_event(name, timestamp=_ns(now_s, self._to_ns))

    def fail(self, kind: str) -> None:
        """It ended with an error of this kind; its text may hold what the client wrote, so it stays out."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self, now_s: float) -> None:
        self._span.end(_ns(now_s, self._to_ns))


def _ns(time_s: float, to_ns: int) -> int:
    return to_ns + int(time_s * 1e9)


class Tracer:
    """Makes spans of one service."""

    def __init__(self, provider: Any, to_ns: int, give_up: Callable[[], None] = lambda: None) -> None:
        """`to_ns` is Unix time at 0 of the service's clock, in nanoseconds. `give_up` ends an export under way."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._server_kind = SpanKind.SERVER
        self._context_of = TraceContextTextMapPropagator().extract
        self._provider = provider
        self._tracer = provider.get_tracer("fastserve")
        self._to_ns = to_ns
        self._give_up = give_up

    def serve(self, name: str, metadata: Mapping[str, str], now_s: float, attributes: Attributes) -> OpenSpan:
        """The span of a request, a child of what the client's metadata names."""
        parent = self._context_of({key: metadata[key] for key in CARRIED if key in metadata})
        start_ns = _ns(now_s, self._to_ns)
        span = self._tracer.start_span(name, parent, self._server_kind, attributes=attributes, start_time=start_ns)
        return OpenSpan(span, self._to_ns)

    def begin(self, name: str, traceparent: str, now_s: float, attributes: Attributes) -> OpenSpan:
        """A span below that of another service."""
        span = self._tracer.start_span(
            name, self._below(traceparent), attributes=attributes, start_time=_ns(now_s, self._to_ns)
        )
        return OpenSpan(span, self._to_ns)

    def record(self, traceparent: str, intervals: Iterable[Interval]) -> None:
        """Makes a span of each interval."""
        parent = self._below(traceparent)
        for one in intervals:
            attributes: dict[str, Any] = {**one.labels, **one.amounts}
            if one.parts > 1:
                attributes |= {"fastserve.merged_spans": one.parts, "fastserve.active_s": one.active_s}
            span = self._tracer.start_span(
                one.name, parent, attributes=attributes, start_time=_ns(one.start_s, self._to_ns)
            )
            span.end(_ns(one.end_s, self._to_ns))

    def close(self) -> None:
        """Sends what is left, or drops what takes longer than CLOSE_LIMIT_S. Waits until then."""
        timer = threading.Timer(CLOSE_LIMIT_S, self._give_up)
        timer.daemon = True
        timer.start()
        self._provider.shutdown()
        timer.cancel()

    def _below(self, traceparent: str) -> Any:
        if len(traceparent) > MOST_TRACEPARENT_CHARACTERS:
            return None
        return self._context_of({TRACEPARENT: traceparent})


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
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracer(provider, time.time_ns() - time.monotonic_ns(), exporter.shutdown)


def own_attributes(service: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What all spans of a service say of it, beside what the variables say, which the SDK reads itself."""
    own = {"service.instance.id": str(uuid.uuid4())}
    stated = environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    if not environment.get("OTEL_SERVICE_NAME") and not any(one.strip().startswith("service.name=") for one in stated):
        own["service.name"] = f"fastserve-{service}"
    return own
