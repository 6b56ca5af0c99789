"""The scheduler's stream to the KV manager, dialled again with back-off whenever it ends.

A turn's messages are one batch, written in order by one task. What is sent while the stream is down is dropped: the
machine opens the next one with all it knows.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.errors import ProtocolError, SupersededError
from services.domain.ids import Epoch
from services.domain.protocol import SchedulerToKv
from services.runtime.channel import Backoff
from services.runtime.error_statuses import from_grpc
from services.scheduler.scheduler_inbox import Inbound, KvClosed, KvOpened, KvSaid
from services.wire.scheduler_kvmanager import kv_batch_from_wire, scheduler_batch_to_wire

_log = logging.getLogger(__name__)

MOST_BATCHES = 10_000
"""A KV manager that lets so many turns wait has stopped to read."""

_Stream = grpc.aio.StreamStreamCall[wire.SchedulerLinkRequest, wire.SchedulerLinkResponse]


class SchedulerLink:
    """The stream. `run` keeps it up."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self._stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)
        self._address = address
        self._outgoing: deque[tuple[Epoch, Sequence[SchedulerToKv]]] = deque()
        self._something = asyncio.Event()
        self._call: _Stream | None = None
        self._is_overrun = False

    def send(self, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
        """One turn's messages."""
        if self._call is None:
            return
        if len(self._outgoing) >= MOST_BATCHES:
            self._is_overrun = True
            self._call.cancel()
            return
        self._outgoing.append((epoch, messages))
        self._something.set()

    async def run(self, post: Callable[[Inbound], None]) -> None:
        """Dials for ever. Raises SupersededError where another scheduler took the KV manager over."""
        backoff = Backoff()
        told = False
        while True:
            call: _Stream = self._stub.SchedulerLink()
            reason = "the stream ended"
            try:
                await self._serve(call, post, backoff)
            except grpc.aio.AioRpcError as error:
                failure = from_grpc(error)
                if isinstance(failure, SupersededError):
                    raise failure from None
                reason = str(failure)
            except ProtocolError as error:
                reason = str(error)
            except asyncio.CancelledError:
                # A call cancelled from this side says so in the same way as this task being cancelled.
                if not self._is_overrun:
                    raise
                reason = "it does not read what it is told"
            finally:
                call.cancel()
                was_up, self._call, self._is_overrun = self._call is not None, None, False
                self._outgoing.clear()
                self._something.clear()
                if was_up:
                    post(KvClosed())
            if was_up or not told:
                _log.warning("no link to the KV manager at %s: %s", self._address, reason)
                told = True
            await asyncio.sleep(backoff.next_s())

    async def _serve(self, call: _Stream, post: Callable[[Inbound], None], backoff: Backoff) -> None:
        await call.wait_for_connection()
        self._call = call
        backoff.reset()
        _log.info("linked to the KV manager at %s", self._address)
        post(KvOpened())
        writer = asyncio.create_task(self._write(call))
        try:
            while isinstance(batch := await call.read(), wire.SchedulerLinkResponse):
                post(KvSaid(*kv_batch_from_wire(batch)))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, call: _Stream) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            while self._outgoing:
                epoch, messages = self._outgoing.popleft()
                await call.write(scheduler_batch_to_wire(epoch, messages))
