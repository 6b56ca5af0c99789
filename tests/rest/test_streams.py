"""Streams over REST: when events come, and what happens when either end goes away or stops."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.domain.errors import AdmissionFullError, InvalidFieldError
from services.domain.generation import EndReason, TokenLogprob
from services.gateway import __main__ as gateway_main
from services.gateway.openai.quiet_streams import QuietStreams
from tests.builders.waits import until
from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.gateway.running_gateway import MODEL_NAME
from tests.rest.conftest import drawn
from tests.rest.running_front import Served, events, refusal, served


@asynccontextmanager
async def raw_stream(
    rest: Served, **fields: object
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a streamed completion was asked for. Reading is the test's business."""
    body = json.dumps({"model": MODEL_NAME, "prompt": "the dog", "stream": True, **fields}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    host, port = rest.address.split(":")
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    head = (
        "POST /v1/completions HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )  # fmt: skip
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    try:
        yield reader, writer
    finally:
        writer.close()


async def line_of_event(reader: asyncio.StreamReader) -> str:
    """The next line that belongs to an event or a comment."""
    while True:
        line = (await asyncio.wait_for(reader.readline(), SOON_S)).decode().rstrip()
        if line.startswith(("data: ", ":")):
            return line


async def test_each_token_is_an_event_as_it_is_made(rest: Served) -> None:
    async with raw_stream(rest, max_tokens=3) as (reader, _):
        job = await rest.scheduler.next_job()
        for number in range(3):
            # The next token is made only when the event of this one has arrived.
            job.send(50 + number, finish=EndReason.LENGTH if number == 2 else None)
            event = json.loads((await line_of_event(reader)).removeprefix("data: "))
            assert event["choices"][0]["finish_reason"] == (None, None, "length")[number]
        assert await line_of_event(reader) == "data: [DONE]"


async def test_a_quiet_stream_gets_comments(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_main, "QuietStreams", lambda: QuietStreams(quiet_s=0.2))
    async with served(model, tmp_path) as rest, raw_stream(rest, max_tokens=1) as (reader, _):
        job = await rest.scheduler.next_job()
        assert [(await line_of_event(reader))[0] for _ in range(2)] == [":", ":"]
        job.send(50, finish=EndReason.LENGTH)
        while (line := await line_of_event(reader)).startswith(":"):
            pass
        assert json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_frees_its_job(stream: bool, rest: Served) -> None:
    async with raw_stream(rest, stream=stream, max_tokens=100) as (_, writer):
        job = await rest.scheduler.next_job()
        job.send(50)
        writer.close()
        assert await job.cancel_reason() is EndReason.CANCELLED


async def test_a_refusal_before_the_first_token_has_its_own_status(rest: Served) -> None:
    for error, status in [
        (AdmissionFullError("2 jobs are queued, the most there may be", 2.5), 429),
        (InvalidFieldError("sampling.max_tokens", "is too many"), 400),
    ]:
        asking = asyncio.create_task(rest.complete(stream=True, max_tokens=3))
        (await rest.scheduler.next_job()).refuse(error)
        response = await asking
        told = refusal(response, status)
        if status == 429:
            assert response.headers["retry-after"] == "3"
            assert (told["type"], told["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        else:
            assert told["param"] == "max_tokens"


async def test_a_failure_midway_is_an_event(rest: Served) -> None:
    async with raw_stream(rest, max_tokens=3) as (reader, _):
        job = await rest.scheduler.next_job()
        job.send(50)
        await line_of_event(reader)
        await rest.scheduler.stop()
        told = json.loads((await line_of_event(reader)).removeprefix("data: "))["error"]
        assert (told["type"], told["param"], told["code"]) == ("server_error", None, "unavailable")
        assert b"[DONE]" not in await asyncio.wait_for(reader.read(), SOON_S)


async def test_a_lost_stream_of_generate_ends_with_what_it_takes_to_resume_it(rest: Served) -> None:
    body = {"text": "the dog", "request_id": "mine", "sampling": {"max_tokens": 3}}

    async def begin() -> None:
        (await rest.scheduler.next_job()).send(50, 51)

    beginning = asyncio.create_task(begin())
    async with rest.http.stream("POST", "/fastserve/v1/generate", json=body) as response:
        await beginning
        lines = response.aiter_lines()
        assert json.loads(await anext(lines))["result"]["token_ids"] == [50, 51]
        await rest.scheduler.stop()
        error = json.loads(await anext(lines))["error"]
    assert (error["code"], error["request_id"], error["resume_from_token"]) == ("unavailable", "mine", 2)


async def test_a_reader_that_stops_is_bounded_cut_off_and_slows_nobody(model: Path, tmp_path: Path) -> None:
    """Its answer would be several MiB. Only as much is made into events as the connection and the credit hold."""
    top = tuple((token_id, -1.0) for token_id in range(60, 80))
    async with (
        served(model, tmp_path, "--write-limit", "1s") as rest,
        raw_stream(rest, max_tokens=390, n=16, logprobs=20) as (reader, _),
    ):
        jobs = [await rest.scheduler.next_job() for _ in range(16)]
        for number in range(390):
            for job in jobs:
                last = EndReason.LENGTH if number == 389 and job is not jobs[0] else None
                job.send(50, finish=last, logprobs=[TokenLogprob(50, -1.0, top)])
        rest.scheduler.script = drawn
        assert (await rest.complete(max_tokens=2)).status_code == 200
        assert await jobs[0].cancel_reason() is EndReason.CANCELLED
        assert b"[DONE]" not in await asyncio.wait_for(reader.read(), SOON_S)


async def test_chat_streams_begin_with_the_role_and_end_with_the_usage(scripted: Served) -> None:
    options = {"include_usage": True}
    response = await scripted.chat(stream=True, stream_options=options, max_tokens=2, seed=3, n=2)
    chunks = events(response.text)
    for index in (0, 1):
        deltas = [c["choices"][0]["delta"] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert all(list(delta) == ["content"] for delta in deltas[1:])
        assert len(deltas) == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_a_link_lost_midway_ends_streams_with_an_event_too(rest: Served) -> None:
    async with raw_stream(rest, max_tokens=3) as (reader, _):
        job = await rest.scheduler.next_job()
        job.send(50)
        await line_of_event(reader)
        await rest.gateway.stop()
        assert json.loads((await line_of_event(reader)).removeprefix("data: "))["error"]["code"] == "unavailable"
    await until(lambda: rest.gateway.serving.done())


async def test_an_answer_larger_than_the_credit_comes_whole_however_many_prompts_write_it(scripted: Served) -> None:
    options = {"include_usage": True}
    prompts = [[60 + number] for number in range(8)]
    answer = await scripted.complete(prompt=prompts, stream=True, stream_options=options, n=2, max_tokens=390, seed=1)
    assert len(answer.content) > 4 * 64 * 1024
    chunks = events(answer.text)
    assert chunks[-1]["usage"]["completion_tokens"] == 16 * 390
    whole = await scripted.complete(prompt=prompts, n=2, max_tokens=390, seed=1)
    for choice in whole.json()["choices"]:
        own = [chunk["choices"][0]["text"] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(own) == choice["text"]
