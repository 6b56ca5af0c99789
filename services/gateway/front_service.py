"""FrontService: the calls of a REST front, all over one stream.

What the calls have to say goes into one message at a time: while one is being written, the pieces of the next gather.
A call that has used up its credit waits for more; so a client that reads slowly holds up nobody, and what is kept for
it is bounded. If the front itself does not read, all calls wait once too many bytes have gathered.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fastserve.v1 import front_pb2, front_pb2_grpc
from services.domain.errors import AdmissionFullError, InvalidFieldError
from services.gateway.access.key_interceptor import entered
from services.gateway.access.key_ring import KeyRing, Metadata
from services.gateway.driver import RETRY_S
from services.gateway.openai.calls import OpenAiCalls
from services.gateway.openai.service import begin, final_status, traced
from services.gateway.request_traces import RequestTraces

FRONT_SERVICE = front_pb2.DESCRIPTOR.services_by_name["FrontService"].full_name
MOST_GATHERED_BYTES = 4 * 1024 * 1024
MOST_PIECE_BYTES = 64 * 1024
MOST_CREDIT_BYTES = 1024 * 1024
MOST_CALLS = 100_000
"""The open requests are bounded by the gateway's driver; this bounds those that are being read and rendered as well."""


class _Outgoing:
    """The pieces that wait for the stream."""

    def __init__(self) -> None:
        self._pieces: list[front_pb2.FrontPiece] = []
        self._gathered_bytes = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._written = asyncio.Event()
        self._written.set()

    @property
    def is_full(self) -> bool:
        return self._gathered_bytes >= MOST_GATHERED_BYTES

    def put(self, piece: front_pb2.FrontPiece, size_bytes: int) -> None:
        self._pieces.append(piece)
        self._gathered_bytes += size_bytes
        self._filled.set()
        self._written.clear()
        if self.is_full:
            self._drained.clear()

    async def until_drained(self) -> None:
        await self._drained.wait()

    async def until_written(self) -> None:
        await self._written.wait()

    async def write_to(self, context: Any) -> None:
        """Writes what gathers, for ever."""
        while True:
            await self._filled.wait()
            pieces, self._pieces, self._gathered_bytes = self._pieces, [], 0
            self._filled.clear()
            self._drained.set()
            await context.write(front_pb2.FrontLinkResponse(pieces=pieces))
            if not self._pieces:
                self._written.set()


class _FrontCallSink:
    """The answer of one call goes to the front. The prompts of a call may write at the same time: what one writes stays
    together.
    """

    __slots__ = ("_call_id", "_credit_bytes", "_has_type", "_more", "_outgoing", "_turn")

    def __init__(self, call_id: int, credit_bytes: int, outgoing: _Outgoing) -> None:
        self._call_id = call_id
        self._credit_bytes = credit_bytes
        self._outgoing = outgoing
        self._has_type = False
        self._more: asyncio.Event | None = None
        self._turn: asyncio.Lock | None = None
        """Taken by who has to wait; made when somebody has."""

    def credit(self, count_bytes: int) -> None:
        self._credit_bytes += count_bytes
        if self._more is not None and self._credit_bytes > 0:
            self._more.set()

    async def write(self, data: bytes, content_type: str) -> None:
        if len(data) <= MOST_PIECE_BYTES and self._has_room and (self._turn is None or not self._turn.locked()):
            self._put(data, content_type)
            return
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            for start in range(0, len(data), MOST_PIECE_BYTES):
                while not self._has_room:
                    await self._room()
                self._put(data[start : start + MOST_PIECE_BYTES], content_type)

    @property
    def _has_room(self) -> bool:
        return self._credit_bytes > 0 and not self._outgoing.is_full

    def _put(self, data: bytes, content_type: str) -> None:
        piece = front_pb2.FrontPiece(call_id=self._call_id, data=data)
        if not self._has_type:
            piece.content_type = content_type
            self._has_type = True
        self._credit_bytes -= len(data)
        self._outgoing.put(piece, len(data))

    async def _room(self) -> None:
        if self._credit_bytes <= 0:
            self._more = asyncio.Event()
            await self._more.wait()
            self._more = None
        else:
            await self._outgoing.until_drained()


class _Link:
    """One front's stream and its calls."""

    def __init__(self, calls: OpenAiCalls, traces: RequestTraces, keys: KeyRing | None, closing: asyncio.Event) -> None:
        self._calls = calls
        self._traces = traces
        self._keys = keys
        self._closing = closing
        self._outgoing = _Outgoing()
        self._last_id = 0
        self._open: dict[int, tuple[asyncio.Task[None], _FrontCallSink]] = {}

    async def run(self, requests: AsyncIterator[front_pb2.FrontLinkRequest], context: Any) -> None:
        """Serves the calls until the front closes the stream or breaks a rule, or this side closes it."""
        writing = asyncio.create_task(self._outgoing.write_to(context))
        reading = asyncio.create_task(self._read(requests))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            else:
                await self._outgoing.until_written()
        finally:
            tasks = [writing, reading, closing, *(task for task, _ in self._open.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[front_pb2.FrontLinkRequest]) -> None:
        async for request in requests:
            self._take(request)

    def _take(self, request: front_pb2.FrontLinkRequest) -> None:
        kind = request.WhichOneof("message")
        if kind == "credit":
            known = self._open.get(request.credit.call_id)
            if known is not None:
                known[1].credit(min(request.credit.bytes, MOST_CREDIT_BYTES))
        elif kind == "cancel":
            known = self._open.pop(request.cancel.call_id, None)
            if known is not None:
                known[0].cancel()
        elif kind == "call":
            self._begin(request.call)

    def _begin(self, call: front_pb2.FrontCall) -> None:
        if call.call_id <= self._last_id:
            raise InvalidFieldError("call.call_id", f"must be greater than {self._last_id}, got {call.call_id}")
        self._last_id = call.call_id
        if len(self._open) >= MOST_CALLS:
            full = AdmissionFullError(f"this gateway has reached its limit of {MOST_CALLS} open calls", RETRY_S)
            end = front_pb2.FrontPiece(call_id=call.call_id, end=final_status(full, call.method))
            self._outgoing.put(end, 0)
            return
        sink = _FrontCallSink(call.call_id, min(call.credit_bytes, MOST_CREDIT_BYTES), self._outgoing)
        deadline_in_s = call.deadline_in_s if call.HasField("deadline_in_s") else None
        metadata = tuple(call.metadata.items())
        running = self._run(call.call_id, call.method, call.request, metadata, deadline_in_s, sink)
        self._open[call.call_id] = (asyncio.create_task(running), sink)

    async def _run(
        self,
        call_id: int,
        method: str,
        request: bytes,
        metadata: Metadata,
        deadline_in_s: float | None,
        sink: _FrontCallSink,
    ) -> None:
        end = front_pb2.FrontPiece(call_id=call_id)
        end.end.SetInParent()
        deadline_s = None if deadline_in_s is None else time.monotonic() + deadline_in_s
        try:
            with traced(self._traces, method, metadata), entered(self._keys, method, metadata):
                answer = await begin(self._calls, method, request, deadline_in_s)
                del request
                await answer.send(sink, deadline_s)
        except Exception as error:
            end.end.CopyFrom(final_status(error, method))
        self._open.pop(call_id, None)
        self._outgoing.put(end, 0)


class FrontService(front_pb2_grpc.FrontServiceServicer):
    """Serves the REST fronts. `keys`: those that each call must have; None: none needs one."""

    def __init__(self, calls: OpenAiCalls, traces: RequestTraces, keys: KeyRing | None = None) -> None:
        self._calls = calls
        self._traces = traces
        self._keys = keys
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends all links, when what they have is written."""
        self._closing.set()

    async def FrontLink(  # type: ignore[override]
        self, requests: AsyncIterator[front_pb2.FrontLinkRequest], context: Any
    ) -> None:
        # A front knows by the initial metadata that it is linked.
        await context.send_initial_metadata(())
        await _Link(self._calls, self._traces, self._keys, self._closing).run(requests, context)


def register_front(server: grpc.aio.Server, front: FrontService) -> None:
    """Adds FrontService to the server."""
    front_pb2_grpc.add_FrontServiceServicer_to_server(front, server)
