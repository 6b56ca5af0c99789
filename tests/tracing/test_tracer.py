"""When there are traces, and how spans hang together."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.domain.errors import InvalidFieldError
from services.tracing import tracer as tracing
from services.tracing.job_spans import Interval
from services.tracing.span_maker import OwnResource
from services.tracing.tracer import MOST_EVENTS, OpenSpan, is_wanted, open_tracer, own_attributes
from tests.tracing.memory_tracer import PARENT, TRACE_ID, MemoryTracer

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "none", **ENDPOINT}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4317"}, True),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp", **ENDPOINT}, False),
    ],
)
def test_there_are_no_traces_unless_the_standard_variables_ask_for_them(
    environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(environment) is wanted
    if not wanted:
        assert open_tracer("gateway", environment) is None


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
    ],
)
def test_what_there_is_not_is_refused_by_the_variables_name(environment: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        open_tracer("gateway", environment)
    assert refused.value.field == field


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def test_a_request_is_a_child_of_what_the_client_names_and_jobs_are_its_children() -> None:
    tracer = MemoryTracer()
    request = tracer.serve(
        "chat m", {"traceparent": PARENT, "tracestate": "a=b"}, 1.0, {"gen_ai.operation.name": "chat"}
    )
    job = tracer.begin("fastserve.job", request.traceparent, 2.0, {})
    tracer.record(job.traceparent, [Interval("fastserve.decode", 3.0, 4.0, {}, {"fastserve.tokens": 7}, 2, 0.5)])
    job.end(5.0)
    request.end(6.0)
    decode, of_job, root = tracer.spans
    assert {f"{context_of(span).trace_id:032x}" for span in tracer.spans} == {TRACE_ID}
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]
    assert root.kind is SpanKind.SERVER
    assert context_of(root).trace_state.get("a") == "b"
    assert of_job.parent is not None
    assert of_job.parent.span_id == context_of(root).span_id
    assert decode.parent is not None
    assert decode.parent.span_id == context_of(of_job).span_id
    assert tracer.times(decode) == (3.0, 4.0)
    assert decode.attributes == {"fastserve.tokens": 7, "fastserve.merged_spans": 2, "fastserve.active_s": 0.5}


def encoded(span: ReadableSpan) -> ScopeSpans:
    """As it is exported, but for its own id."""
    made: ScopeSpans = encode_spans([span]).resource_spans[0].scope_spans[0]
    made.spans[0].span_id = b""
    return made


@pytest.mark.parametrize("failed", [False, True])
def test_what_is_exported_is_what_the_sdk_exports_of_a_span_of_its_own(failed: bool) -> None:
    told: dict[str, Any] = {"gen_ai.request.model": "m", "fastserve.tokens": 7, "fastserve.active_s": 0.5}
    lists: dict[str, Any] = {"gen_ai.response.finish_reasons": ("stop", "length")}
    tracer, sdk = MemoryTracer(), InMemorySpanExporter()
    ours = tracer.serve("chat m", {"traceparent": PARENT, "tracestate": "a=b"}, 1.0, told)
    ours.event("fastserve.epoch_ended", 2.0)
    ours.set(lists)
    if failed:
        ours.fail("ValueError")
    ours.end(3.0)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(sdk))
    above = TraceContextTextMapPropagator().extract({"traceparent": PARENT, "tracestate": "a=b"})
    start_ns = 1_700_000_001 * 10**9
    own = provider.get_tracer("fastserve").start_span("chat m", above, SpanKind.SERVER, told, start_time=start_ns)
    own.add_event("fastserve.epoch_ended", timestamp=start_ns + 10**9)
    own.set_attributes(lists)
    if failed:
        own.set_attribute("error.type", "ValueError")
        own.set_status(StatusCode.ERROR)
    own.end(start_ns + 2 * 10**9)
    assert encoded(tracer.spans[0]) == encoded(sdk.get_finished_spans()[0])
    assert tracer.spans[0].resource.attributes == sdk.get_finished_spans()[0].resource.attributes


def test_a_failure_tells_its_kind_and_no_text() -> None:
    tracer = MemoryTracer()
    request = tracer.serve("chat m", {}, 1.0, {})
    request.fail("InvalidFieldError")
    request.end(2.0)
    (span,) = tracer.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert span.attributes == {"error.type": "InvalidFieldError"}


def test_what_is_not_sampled_names_no_context() -> None:
    tracer = MemoryTracer()
    unsampled = tracer.serve("chat m", {"traceparent": PARENT[:-2] + "00"}, 1.0, {})
    assert unsampled.traceparent == ""
    finish(unsampled)
    assert tracer.spans == ()


def finish(span: OpenSpan) -> None:
    span.record([Interval("fastserve.decode", 2.0, 3.0)])
    span.end(4.0)


def test_a_service_whose_sampler_takes_none_makes_no_span_of_a_sampled_trace_nor_below_it() -> None:
    tracer = MemoryTracer(ALWAYS_OFF)
    job = tracer.begin("fastserve.job", PARENT, 1.0, {})
    assert job.traceparent == ""
    finish(job)
    tracer.record(PARENT, [Interval("fastserve.upload", 2.0, 3.0)])
    assert tracer.spans == ()


@pytest.mark.parametrize("traceparent", ["", PARENT[:-2] + "00", "x" * 10_000])
def test_below_what_is_no_sampled_trace_nothing_is_recorded(traceparent: str) -> None:
    tracer = MemoryTracer()
    tracer.record(traceparent, [Interval("fastserve.upload", 2.0, 3.0)])
    assert tracer.spans == ()


def test_a_span_has_the_events_that_came_last() -> None:
    tracer = MemoryTracer()
    job = tracer.begin("fastserve.job", PARENT, 1.0, {})
    for number in range(MOST_EVENTS + 1):
        job.event(f"fastserve.event_{number}", 2.0)
    job.end(3.0)
    (span,) = tracer.spans
    assert [event.name for event in span.events] == [f"fastserve.event_{one}" for one in range(1, MOST_EVENTS + 1)]
    assert {event.timestamp for event in span.events} == {1_700_000_002 * 10**9}


@pytest.mark.parametrize(
    ("variable", "value", "kept"),
    [
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "3", {"gen_ai.request.model": "mod", "fastserve.tokens": 12345}),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1", {"fastserve.tokens": 12345}),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "128", {"gen_ai.request.model": "model", "fastserve.tokens": 12345}),
    ],
)
def test_the_variables_limits_of_attributes_hold(
    variable: str, value: str, kept: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    tracer = MemoryTracer()
    request = tracer.serve("chat m", {}, 1.0, {"gen_ai.request.model": "model"})
    request.set({"fastserve.tokens": 12345})
    request.end(2.0)
    (span,) = tracer.spans
    assert span.attributes == kept
    assert span.dropped_attributes == 2 - len(kept)


def test_a_resource_that_knows_its_hash_is_the_same_resource() -> None:
    resource = Resource({"service.name": "mine"}, "https://schema")
    own = OwnResource(resource)
    assert (own, own.schema_url, dict(own.attributes)) == (resource, "https://schema", {"service.name": "mine"})
    assert hash(own) == hash(resource)


class DeafCollector(SpanExporter):
    """An exporter whose collector takes nothing, until it is told to give up."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self.gave_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.gave_up = self._told.wait(60.0)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._told.set()


def test_a_service_that_ends_does_not_wait_for_a_collector_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CLOSE_LIMIT_S", 0.01)
    collector = DeafCollector()
    provider = TracerProvider(shutdown_on_exit=False)
    closing = tracing.Tracer(provider, BatchSpanProcessor(collector), 0, collector.shutdown)
    closing.begin("fastserve.job", "", 1.0, {}).end(2.0)
    closing.close()
    assert collector.gave_up


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "fastserve-gateway"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "team=a,service.name=ours"}, "ours"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=a"}, "fastserve-gateway"),
    ],
)
def test_a_service_is_called_what_the_variables_call_it(
    environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert Resource.create(own_attributes("gateway", environment)).attributes["service.name"] == name
