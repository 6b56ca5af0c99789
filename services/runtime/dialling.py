"""A stream that this side dials: one attempt, and the loop that redials.

An attempt sends hello, then writes the items of its outbox and passes on what it reads, until the stream ends. It
always ends with a typed error that says why: the error in the peer's status, UnreachableError if the peer is gone or
closed the stream, ProtocolError for an invalid message, or the error that the outbox was closed with. `keep_dialling`
makes attempts forever, with pauses that double as long as none of them succeeds.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import grpc

from services.domain.errors import FastServeError, UnreachableError
from services.runtime.backoff import Backoff
from services.runtime.error_statuses import from_grpc
from services.runtime.outbox import Outbox
from services.runtime.terms import term_of

_log = logging.getLogger(__name__)

HELLO_LIMIT_S = 10.0

ItemT = TypeVar("ItemT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


async def keep_dialling(
    attempt: Callable[[Callable[[], None]], Awaitable[None]],
    peer: str,
    *,
    final: tuple[type[FastServeError], ...],
    steady_s: float = 0.0,
    jitter: float = 0.0,
) -> NoReturn:
    """Runs `attempt(is_up)` forever. An attempt calls `is_up` once the peer has accepted the stream, and raises the
    reason for its end.

    The pauses start over from the shortest after an attempt that was up and lasted for `steady_s`. `jitter` is the
    share of a pause that is random, so that many peers do not dial at once. Raises the errors in `final`, for which
    redialling can't help. A failure is logged if the stream had been up, or if it is the first.
    """
    backoff = Backoff()
    was_told = False
    while True:
        was_up = False

        def is_up() -> None:
            nonlocal was_up
            was_up = True

        began_s = time.monotonic()
        try:
            await attempt(is_up)
            reason = "the stream ended"
        except final:
            raise
        except FastServeError as error:
            reason = str(error)
        if was_up or not was_told:
            _log.warning("no stream to %s: %s; redialling", peer, reason)
            was_told = True
        if was_up and time.monotonic() - began_s >= steady_s:
            backoff.reset()
        await asyncio.sleep(backoff.next_s() * random.uniform(1.0 - jitter, 1.0))


class DialledStream(Generic[RequestT, ResponseT]):
    """One attempt over `call`, a bidirectional grpc.aio call that has just begun; `peer` names the peer in errors. Use
    it as a context manager: on exit the call is cancelled, and a gRPC error is converted to a typed one.
    """

    def __init__(self, call: "grpc.aio.StreamStreamCall[RequestT, ResponseT]", peer: str) -> None:
        self._call: Any = call
        self._peer = peer

    async def __aenter__(self) -> "DialledStream[RequestT, ResponseT]":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._call.cancel()
        if isinstance(error, grpc.aio.AioRpcError):
            raise from_grpc(error) from None

    async def connect(self) -> None:
        """Wait until the connection is established, for a stream without a hello."""
        await self._call.wait_for_connection()

    async def say(self, hello: RequestT) -> None:
        """Write the first message. Raises UnreachableError if the peer does not take it in time."""
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                await self._call.write(hello)
        except TimeoutError:
            raise self._silence() from None

    async def answer(self) -> ResponseT:
        """Read the peer's first message. Raises UnreachableError if none arrives in time."""
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                first: ResponseT = await self._call.read()
        except TimeoutError:
            raise self._silence() from None
        if first is grpc.aio.EOF:
            raise await self._end()
        return first

    async def term(self) -> int:
        """The term of the scheduler that answered (services.runtime.terms)."""
        return term_of(await self._call.initial_metadata())

    async def exchange(
        self,
        outbox: Outbox[ItemT],
        to_wire: Callable[[Sequence[ItemT]], Iterable[RequestT]],
        on_message: Callable[[ResponseT], None],
    ) -> NoReturn:
        """Write the items of the outbox and pass on what is read, in order, until the stream ends. Raises the reason
        for its end.

        `to_wire` makes messages from the items that are waiting together.
        """
        reading = asyncio.create_task(self._read(on_message))
        writing = asyncio.create_task(self._write(outbox, to_wire))
        closing = asyncio.create_task(outbox.until_closed())
        try:
            # A failed write needs no handling: the stream has ended, and reading raises the reason.
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            if closing.done():
                closing.result()
            reading.result()
        finally:
            tasks = (reading, writing, closing)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise await self._end()

    async def _read(self, on_message: Callable[[ResponseT], None]) -> None:
        while (message := await self._call.read()) is not grpc.aio.EOF:
            on_message(message)

    async def _write(self, outbox: Outbox[ItemT], to_wire: Callable[[Sequence[ItemT]], Iterable[RequestT]]) -> None:
        while True:
            for message in to_wire(await outbox.take()):
                await self._call.write(message)

    async def _end(self) -> Exception:
        """The error for a stream that has no further messages."""
        call = self._call
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return UnreachableError(f"{self._peer} closed the stream")
        return grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )

    def _silence(self) -> UnreachableError:
        return UnreachableError(f"{self._peer} does not answer")
