"""What the gateway's log says of requests: request and trace, and no prompt below level debug."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import openai_pb2_grpc
from services.domain.generation import EndReason
from services.gateway import service
from services.gateway.request_traces import RequestTraces
from services.runtime.logs import LogFormat, formatter_of, log_about
from tests.builders.generate_requests import text_request
from tests.gateway.running_gateway import Pair
from tests.tracing.memory_tracer import PARENT, TRACE_ID, MemoryTracer

SECRET = "the dog buried a key"
UNSAMPLED = (("traceparent", PARENT[:-2] + "00"),)


@contextmanager
def logged(level: str, log_format: LogFormat = "json") -> Iterator[StringIO]:
    """The process's log at this level."""
    text = StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter_of("gateway", log_format))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield text
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


def objects(text: StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.getvalue().splitlines()]


def secret_request() -> api.GenerateRequest:
    request = text_request(SECRET, max_tokens=8)
    request.request_id = "mine"
    return request


async def complete(pair: Pair, metadata: tuple[tuple[str, str], ...] = ()) -> None:
    """The same prompt over the OpenAI API."""
    gateway, _ = pair
    stub: Any = openai_pb2_grpc.OpenAiServiceStub(gateway.channel)
    body = json.dumps({"model": "tiny", "prompt": [SECRET, SECRET], "max_tokens": 8}).encode()
    call = stub.CreateCompletion(httpbody_pb2.HttpBody(content_type="application/json", data=body), metadata=metadata)
    assert b"choices" in b"".join([message.data async for message in call])


async def test_at_level_debug_a_request_is_logged_with_its_id_and_its_prompt(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.script = lambda _: [5, 6]
    with logged("DEBUG") as text:
        await gateway.collect(secret_request())
        await complete(pair)
    opened = [line for line in objects(text) if "opened" in line["message"]]
    assert len(opened) == 3
    assert all(SECRET in line["message"] for line in opened)
    assert opened[0]["request_id"] == "mine"
    assert len({line["request_id"] for line in opened}) == 3


async def test_at_level_info_no_prompt_is_logged_whatever_happens(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, scheduler = pair
    scheduler.script = lambda _: [5, 6]

    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    with logged("INFO") as text:
        await gateway.collect(secret_request())
        await complete(pair)
        too_long = text_request(SECRET * 1000, max_tokens=8)
        await gateway.refusal(too_long)
        monkeypatch.setattr(service, "piece_to_wire", broken)
        await gateway.refusal(secret_request())
    [failed] = objects(text)
    assert (failed["level"], failed["request_id"]) == ("error", "mine")
    assert "KeyError: 'a bug'" in failed["error"]
    assert not any(word in text.getvalue() for word in SECRET.split() if len(word) > 3)


async def test_a_request_without_an_id_of_the_client_s_is_logged_by_the_one_it_was_given(pair: Pair) -> None:
    gateway, scheduler = pair
    with logged("DEBUG") as text:
        stream = gateway.generate(text_request(SECRET, max_tokens=8))
        job = await scheduler.next_job()
        job.send(5, finish=EndReason.LENGTH)
        messages = [message async for message in stream]
    [opened] = [line for line in objects(text) if "opened" in line["message"]]
    assert opened["request_id"] == messages[0].request_id


async def test_the_trace_that_a_client_is_in_is_named_though_no_spans_are_made(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.script = lambda _: [5, 6]
    with logged("DEBUG") as text, logged("DEBUG", "human") as lines:
        async for _ in gateway.inference.Generate(secret_request(), metadata=UNSAMPLED):
            pass
        await complete(pair, UNSAMPLED)
        await complete(pair)
    opened = [line for line in objects(text) if "opened" in line["message"]]
    assert [line.get("trace_id") for line in opened] == [TRACE_ID] * 3 + [None] * 2
    first, *_ = [line for line in lines.getvalue().splitlines() if "opened" in line]
    assert first.endswith(f"[request_id=mine trace_id={TRACE_ID}]")


async def test_what_fails_in_a_call_is_logged_with_its_trace_also_before_it_has_a_request(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = pair

    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(service, "request_from_wire", broken)
    with logged("INFO") as text, pytest.raises(grpc.aio.AioRpcError):
        async for _ in gateway.inference.Generate(secret_request(), metadata=UNSAMPLED):
            pass
    [failed] = objects(text)
    assert failed["trace_id"] == TRACE_ID
    assert "request_id" not in failed


async def test_a_trace_that_begins_here_is_named_if_it_is_sampled() -> None:
    tracer = MemoryTracer()
    traces = RequestTraces(tracer, "m", lambda: 0.0)
    with logged("INFO", "human") as text, traces.call("chat", ()):
        log_about(request_id="mine")
        logging.getLogger("tests").warning("late")
    [span] = tracer.spans
    assert span.context is not None
    assert text.getvalue().endswith(f"late [request_id=mine trace_id={span.context.trace_id:032x}]\n")
