"""A receiver of OTLP traces over gRPC, and the spans that it was sent."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class ReceivedSpan:
    """A span; ids in hexadecimal, times in nanoseconds."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: tuple[str, ...]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(one) for one in value.array_value.values)
    return getattr(value, kind)


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []

    def Export(self, request: Any, context: Any) -> Any:
        with self._lock:
            for resource in request.resource_spans:
                names = {one.key: _value(one.value) for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans.extend(self._received(names["service.name"], span) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    @staticmethod
    def _received(service: str, span: Any) -> ReceivedSpan:
        return ReceivedSpan(
            service,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {one.key: _value(one.value) for one in span.attributes},
            tuple(event.name for event in span.events),
        )

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of a trace, by their start."""
        with self._lock:
            return sorted((one for one in self._spans if one.trace_id == trace_id), key=lambda one: one.start_ns)


@contextmanager
def receiving() -> Iterator[tuple[OtlpReceiver, str]]:
    """A receiver, and its address as OTEL_EXPORTER_OTLP_ENDPOINT takes it."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0.5).wait()
