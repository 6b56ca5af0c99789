"""A tracer whose spans stay in memory, on a clock that begins at 0."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from services.tracing.tracer import Tracer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


class MemoryTracer(Tracer):
    """Keeps what it made, in the order in which the spans ended."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        self._to_ns = 1_700_000_000 * 10**9
        super().__init__(provider, SimpleSpanProcessor(self._kept), self._to_ns)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._kept.get_finished_spans()

    def times(self, span: ReadableSpan) -> tuple[float, float]:
        """Start and end in seconds of the clock."""
        assert span.start_time is not None
        assert span.end_time is not None
        return round((span.start_time - self._to_ns) / 1e9, 6), round((span.end_time - self._to_ns) / 1e9, 6)

    def story(self) -> list[tuple[str, float, float]]:
        """Names and times, by start."""
        return sorted(((span.name, *self.times(span)) for span in self.spans), key=lambda one: (one[1], one[2], one[0]))
