"""What the gateway's log says of requests: ids, and no prompt below level debug."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from google.api import httpbody_pb2

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import openai_pb2_grpc
from services.domain.generation import EndReason
from services.gateway import service
from services.runtime.logs import formatter_of
from tests.builders.generate_requests import text_request
from tests.gateway.running_gateway import Pair

SECRET = "the dog buried a key"


@contextmanager
def logged(level: str) -> Iterator[StringIO]:
    """The process's log at this level, as JSON."""
    text = StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter_of("gateway", "json"))
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


async def complete(pair: Pair) -> None:
    """The same prompt over the OpenAI API."""
    gateway, _ = pair
    stub: Any = openai_pb2_grpc.OpenAiServiceStub(gateway.channel)
    body = json.dumps({"model": "tiny", "prompt": [SECRET, SECRET], "max_tokens": 8}).encode()
    call = stub.CreateCompletion(httpbody_pb2.HttpBody(content_type="application/json", data=body))
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
