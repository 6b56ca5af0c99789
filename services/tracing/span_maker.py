"""Spans as OpenTelemetry's SDK exports them, made of what was recorded, when they are over. Imported only when there
are traces.

The SDK's own open spans may be changed by any thread at any time: their locks, copies and checks take several times as
long as all the rest. Here one task alone knows a span before its end, so it is a value that is made once.
"""

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import Attributes

from services.tracing.job_spans import Interval

MOST_ATTRIBUTES = 32
"""No span here has as many. OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT matters below that."""
_SCOPE = InstrumentationScope("fastserve", "")
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OwnResource(Resource):
    """A resource that knows its hash. An exporter asks for it with every span, and the SDK's makes JSON of all its
    attributes each time.
    """

    def __init__(self, like: Resource) -> None:
        super().__init__(like.attributes, like.schema_url)
        self._hash = super().__hash__()

    __eq__ = Resource.__eq__

    def __hash__(self) -> int:
        return self._hash


def attributes_within_limits() -> Callable[[dict[str, Any]], Attributes]:
    """Holds the attributes of a span to the limits that the variables set. Without one that a span here could meet it
    returns what it is given.
    """
    limits = SpanLimits()
    count, length = limits.max_span_attributes, limits.max_span_attribute_length
    if length is None and (count is None or count >= MOST_ATTRIBUTES):
        return lambda attributes: attributes
    return lambda attributes: BoundedAttributes(count, attributes, max_value_len=length)


class SpanMaker:
    """Makes sampled spans that are over. Times are in seconds of the service's clock."""

    def __init__(self, provider: TracerProvider, processor: SpanProcessor, to_ns: int) -> None:
        """`to_ns` is Unix time at 0 of the service's clock, in nanoseconds."""
        self._resource = OwnResource(provider.resource)
        self._span_id = provider.id_generator.generate_span_id
        self._give = processor.on_end
        self._within_limits = attributes_within_limits()
        self._to_ns = to_ns

    def context(self, trace_id: int, state: TraceState | None) -> SpanContext:
        """That of a new span."""
        return SpanContext(trace_id, self._span_id(), False, _SAMPLED, state)

    def make(
        self, name: str, context: SpanContext, parent: SpanContext | None, times_s: tuple[float, float],
        attributes: dict[str, Any], kind: SpanKind = SpanKind.INTERNAL, events: Iterable[tuple[str, float]] = (),
        failed: bool = False,
    ) -> None:  # fmt: skip
        """Gives a span to the processor. `times_s`: its start and its end; `events`: names with their times."""
        to_ns = self._to_ns
        start_s, end_s = times_s
        self._give(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                self._within_limits(attributes),
                [Event(event, timestamp=to_ns + int(at_s * 1e9)) for event, at_s in events] if events else (),
                kind=kind,
                status=_ERROR if failed else _UNSET,
                start_time=to_ns + int(start_s * 1e9),
                end_time=to_ns + int(end_s * 1e9),
                instrumentation_scope=_SCOPE,
            )
        )

    def make_all(self, parent: SpanContext, intervals: Iterable[Interval]) -> None:
        """Makes a span below this one of each interval."""
        for one in intervals:
            attributes: dict[str, Any] = {**one.labels, **one.amounts}
            if one.parts > 1:
                attributes |= {"fastserve.merged_spans": one.parts, "fastserve.active_s": one.active_s}
            context = self.context(parent.trace_id, parent.trace_state)
            self.make(one.name, context, parent, (one.start_s, one.end_s), attributes)
