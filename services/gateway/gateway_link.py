"""The gateway's two uses of the scheduler: the one long-lived stream for jobs and tokens, and calls of AdminService.

The stream is dialled again with back-off whenever it ends. What is to be sent is kept in a queue and written by one
task; the queue is bounded by the open requests, of which the driver bounds the number. What was queued for a stream
that ended is dropped with it: the driver ends the requests.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import PeerMismatchError, ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.server_status import ServerStatus
from services.domain.submission import JobUpdate, ServingLimits, Submission
from services.runtime.channel import Backoff
from services.runtime.error_statuses import from_grpc
from services.wire.gateway_scheduler import (
    cancel_to_wire,
    hello_to_wire,
    limits_from_wire,
    submission_to_wire,
    updates_from_wire,
)
from services.wire.operator_scheduler import status_from_wire

_log = logging.getLogger(__name__)

HELLO_LIMIT_S = 5.0
ADMIN_LIMIT_S = 5.0
FLUSH_LIMIT_S = 1.0

_Stream = grpc.aio.StreamStreamCall[wire.GatewayLinkRequest, wire.GatewayLinkResponse]


class GatewayLink:
    """The stream. `run` keeps it up; `submit` and `cancel` queue, and are dropped while it is down."""

    def __init__(self, channel: grpc.aio.Channel, address: str, gateway_id: str, model_fingerprint: str) -> None:
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._address = address
        self._hello = hello_to_wire(gateway_id, model_fingerprint)
        self._outgoing: deque[wire.GatewayLinkRequest] = deque()
        self._something = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._is_up = False

    def submit(self, submission: Submission) -> None:
        self._put(wire.GatewayLinkRequest(submit=submission_to_wire(submission)))

    def cancel(self, job_id: JobId, reason: EndReason) -> None:
        self._put(wire.GatewayLinkRequest(cancel=cancel_to_wire(job_id, reason)))

    def _put(self, message: wire.GatewayLinkRequest) -> None:
        if self._is_up:
            self._outgoing.append(message)
            self._something.set()
            self._all_sent.clear()

    async def flush(self) -> None:
        """Until everything queued is written, within a second."""
        try:
            await asyncio.wait_for(self._all_sent.wait(), FLUSH_LIMIT_S)
        except TimeoutError:
            _log.warning("left the scheduler with %d messages unsent", len(self._outgoing))

    async def run(
        self,
        on_limits: Callable[[ServingLimits], None],
        on_updates: Callable[[Sequence[JobUpdate]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Dials for ever. Raises PeerMismatchError where the scheduler serves another model."""
        backoff = Backoff()
        told = False
        while True:
            call: _Stream = self._stub.GatewayLink()
            reason = "the stream ended"
            try:
                await self._read(call, on_limits, on_updates, backoff)
            except grpc.aio.AioRpcError as error:
                failure = from_grpc(error)
                if isinstance(failure, PeerMismatchError):
                    raise failure from None
                reason = str(failure)
            except (ProtocolError, TimeoutError) as error:
                reason = str(error) or "no answer to the hello"
            finally:
                call.cancel()
            if self._is_up or not told:
                _log.warning("no link to the scheduler at %s: %s", self._address, reason)
                told = True
            self._close_queue()
            on_lost()
            await asyncio.sleep(backoff.next_s())

    async def _read(
        self,
        call: _Stream,
        on_limits: Callable[[ServingLimits], None],
        on_updates: Callable[[Sequence[JobUpdate]], None],
        backoff: Backoff,
    ) -> None:
        async with asyncio.timeout(HELLO_LIMIT_S):
            await call.write(self._hello)
            first = await call.read()
        if not isinstance(first, wire.GatewayLinkResponse) or first.WhichOneof("message") != "welcome":
            raise ProtocolError("the scheduler's first message is no welcome")
        self._is_up = True
        backoff.reset()
        _log.info("linked to the scheduler at %s", self._address)
        writer = asyncio.create_task(self._write(call))
        try:
            on_limits(limits_from_wire(first.welcome.limits))
            while isinstance(message := await call.read(), wire.GatewayLinkResponse):
                if message.HasField("updates"):
                    on_updates(updates_from_wire(message.updates))
                elif message.HasField("limits"):
                    on_limits(limits_from_wire(message.limits))
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        # The stream is at its end: this raises its status, if that is not OK.
        if await call.code() is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )

    async def _write(self, call: _Stream) -> None:
        while True:
            await self._something.wait()
            while self._outgoing:
                await call.write(self._outgoing.popleft())
            self._something.clear()
            self._all_sent.set()

    def _close_queue(self) -> None:
        self._is_up = False
        self._outgoing.clear()
        self._something.clear()
        self._all_sent.set()


class AdminClient:
    """AdminService of the scheduler. Failures are typed errors."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = admin_pb2_grpc.AdminServiceStub(channel)

    async def status(self, request: admin_pb2.GetStatusRequest) -> admin_pb2.GetStatusResponse:
        try:
            return await self._stub.GetStatus(request, timeout=ADMIN_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None

    async def server_status(self, limit_s: float) -> ServerStatus:
        """What the metrics show."""
        try:
            response = await self._stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None
        return status_from_wire(response.status)

    async def watch(self, request: admin_pb2.WatchStatusRequest) -> AsyncIterator[admin_pb2.WatchStatusResponse]:
        call = self._stub.WatchStatus(request)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None
        finally:
            call.cancel()
