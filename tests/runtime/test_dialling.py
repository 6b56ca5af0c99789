"""Streams that are dialled: they always end with a reason, and are dialled again unless that can't help. Real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from services.domain.errors import FastServeError, NotReadyError, SupersededError, UnreachableError
from services.runtime import dialling
from services.runtime.dialling import DialledStream, keep_dialling
from services.runtime.error_statuses import status_of, to_grpc
from services.runtime.outbox import Outbox

METHOD = "/test.Echo/Stream"
LIMIT_S = 60.0

Behaviour = Callable[[AsyncIterator[bytes], Any], Any]


@asynccontextmanager
async def dialled(behaviour: Behaviour) -> AsyncIterator[Callable[[], DialledStream[bytes, bytes]]]:
    """A server with one bidirectional method of bytes, and a way to dial it."""

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(
        "test.Echo", {"Stream": grpc.stream_stream_rpc_method_handler(behaviour)}
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(LIMIT_S):
            yield lambda: DialledStream(channel.stream_stream(METHOD)(), "the echo")
    finally:
        await server.stop(0)


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        if request == b"end":
            return
        if request == b"abort":
            await context.abort_with_status(to_grpc(status_of(SupersededError("another took over"))))
        await context.write(request.upper())


async def greeted(dial: Callable[[], DialledStream[bytes, bytes]], hello: bytes) -> bytes:
    """A peer's answer to hello."""
    async with dial() as stream:
        await stream.say(hello)
        return await stream.answer()


def as_they_are(items: Sequence[bytes]) -> Sequence[bytes]:
    return items


async def test_what_is_put_is_written_in_order_and_what_is_read_is_handed_on() -> None:
    heard: list[bytes] = []
    outbox = Outbox[bytes](10, "the echo")

    def on_message(message: bytes) -> None:
        heard.append(message)
        if len(heard) == 3:
            outbox.put(b"end")

    async with dialled(echo) as dial:
        for item in (b"a", b"b", b"c"):
            outbox.put(item)
        with pytest.raises(UnreachableError, match="the echo closed the stream"):
            async with dial() as stream:
                await stream.exchange(outbox, as_they_are, on_message)
    assert heard == [b"A", b"B", b"C"]


async def test_a_hello_is_answered_before_anything_else_is_written() -> None:
    async with dialled(echo) as dial:
        assert await greeted(dial, b"hello") == b"HELLO"


async def test_a_stream_ends_with_the_typed_error_of_the_peers_status() -> None:
    outbox = Outbox[bytes](10, "the echo")
    outbox.put(b"abort")
    async with dialled(echo) as dial:
        with pytest.raises(SupersededError, match="another took over"):
            async with dial() as stream:
                await stream.exchange(outbox, as_they_are, lambda _: None)


async def test_a_peer_that_ends_instead_of_answering_is_unreachable() -> None:
    async with dialled(echo) as dial:
        with pytest.raises(UnreachableError, match="closed the stream"):
            await greeted(dial, b"end")


async def test_a_peer_that_does_not_answer_in_time_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "HELLO_LIMIT_S", 0.05)

    async def silent(requests: AsyncIterator[bytes], context: Any) -> None:
        async for _ in requests:
            pass

    async with dialled(silent) as dial:
        with pytest.raises(UnreachableError, match="the echo does not answer"):
            await greeted(dial, b"hello")


async def test_an_outbox_that_is_closed_ends_the_stream_with_its_error() -> None:
    outbox = Outbox[bytes](10, "the echo")
    async with dialled(echo) as dial:
        outbox.put(b"a")
        with pytest.raises(NotReadyError, match="enough"):
            async with dial() as stream:
                await stream.exchange(outbox, as_they_are, lambda _: outbox.close(NotReadyError("enough")))


async def test_nobody_there_is_unreachable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(UnreachableError):
            await greeted(lambda: DialledStream(channel.stream_stream(METHOD)(), "nobody"), b"hello")


class Pauses:
    """Replaces asyncio's sleep and keeps the requested pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, pause_s: float) -> None:
        self.s.append(pause_s)


def failing(ups: Sequence[bool], last: FastServeError) -> Callable[[Callable[[], None]], Any]:
    """An attempt that fails each time, whether or not it was up, and finally raises `last`."""
    left = list(ups)

    async def attempt(is_up: Callable[[], None]) -> None:
        if not left:
            raise last
        if left.pop(0):
            is_up()
        raise UnreachableError("gone")

    return attempt


async def test_pauses_double_while_no_attempt_is_up_and_begin_anew_after_one_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = Pauses(monkeypatch)
    attempt = failing([False, False, False, True, False], SupersededError("over"))
    with pytest.raises(SupersededError):
        await keep_dialling(attempt, "the peer", final=(SupersededError,))
    assert pauses.s == [0.05, 0.1, 0.2, 0.05, 0.1]


async def test_an_attempt_that_did_not_last_keeps_the_pauses_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    with pytest.raises(SupersededError):
        await keep_dialling(
            failing([True, True], SupersededError("over")), "the peer", final=(SupersededError,), steady_s=60.0
        )
    assert pauses.s == [0.05, 0.1]


async def test_the_first_failure_is_logged_and_then_only_the_loss_of_what_was_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Pauses(monkeypatch)
    attempt = failing([False, False, True, False], SupersededError("over"))
    with pytest.raises(SupersededError):
        await keep_dialling(attempt, "the peer", final=(SupersededError,))
    assert len([record for record in caplog.records if "no stream to the peer: gone" in record.message]) == 2


async def test_an_error_that_is_a_bug_is_not_dialled_over() -> None:
    async def attempt(is_up: Callable[[], None]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await keep_dialling(attempt, "the peer", final=())
