"""The gateway's stream to the scheduler (GatewayLink), for jobs and tokens; dialled again whenever it ends.

What is to be sent is bounded by the open requests, of which the driver bounds the number. What waits for a stream that
ended is dropped with it: the driver submits all open jobs again on the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from fastserve.v1 import scheduler_pb2 as wire
from fastserve.v1 import scheduler_pb2_grpc
from services.domain.errors import PeerMismatchError, ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.submission import JobUpdate, ServingLimits, Submission
from services.runtime.channel import RenewableChannel
from services.runtime.dialling import DialledStream, keep_dialling
from services.runtime.outbox import Outbox
from services.runtime.terms import NewestTerm
from services.wire.gateway_scheduler import (
    cancel_to_wire,
    hello_to_wire,
    limits_from_wire,
    submission_to_wire,
    updates_from_wire,
)

_log = logging.getLogger(__name__)

FLUSH_LIMIT_S = 1.0
MOST_MESSAGES = 1_000_000
"""Submissions and cancels of the requests that may be open, with several choices each."""


def _as_they_are(messages: Sequence[wire.GatewayLinkRequest]) -> Sequence[wire.GatewayLinkRequest]:
    return messages


class GatewayLink:
    """The stream. `run` keeps it up; `submit` and `cancel` queue, and are dropped while it is down."""

    def __init__(self, channel: RenewableChannel, address: str, gateway_id: str, model_fingerprint: str) -> None:
        self._channel = channel
        self._peer = f"the scheduler at {address}"
        self._hello = hello_to_wire(gateway_id, model_fingerprint)
        self._outbox: Outbox[wire.GatewayLinkRequest] | None = None
        self._terms = NewestTerm()

    def submit(self, submission: Submission) -> None:
        self._put(wire.GatewayLinkRequest(submit=submission_to_wire(submission)))

    def cancel(self, job_id: JobId, reason: EndReason) -> None:
        self._put(wire.GatewayLinkRequest(cancel=cancel_to_wire(job_id, reason)))

    def _put(self, message: wire.GatewayLinkRequest) -> None:
        if self._outbox is not None:
            self._outbox.put(message)

    async def flush(self) -> None:
        """Until everything queued is written, within a second."""
        if self._outbox is None:
            return
        try:
            await asyncio.wait_for(self._outbox.flushed(), FLUSH_LIMIT_S)
        except TimeoutError:
            _log.warning("left %s with unsent messages", self._peer)

    async def run(
        self,
        on_limits: Callable[[ServingLimits], None],
        on_updates: Callable[[Sequence[JobUpdate]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Dials for ever. Raises PeerMismatchError where the scheduler serves another model."""

        def on_message(message: wire.GatewayLinkResponse) -> None:
            if message.HasField("updates"):
                on_updates(updates_from_wire(message.updates))
            elif message.HasField("limits"):
                on_limits(limits_from_wire(message.limits))

        async def attempt(is_up: Callable[[], None]) -> None:
            try:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(self._channel.now)
                async with DialledStream(stub.GatewayLink(), self._peer) as stream:
                    await stream.say(self._hello)
                    first = await stream.answer()
                    if first.WhichOneof("message") != "welcome":
                        raise ProtocolError("the scheduler's first message is not its welcome")
                    self._terms.check_dialled(await stream.term(), self._peer)
                    outbox = self._outbox = Outbox[wire.GatewayLinkRequest](MOST_MESSAGES, self._peer)
                    is_up()
                    _log.info("linked to %s", self._peer)
                    on_limits(limits_from_wire(first.welcome.limits))
                    await stream.exchange(outbox, _as_they_are, on_message)
            finally:
                if self._outbox is None:
                    # Perhaps a scheduler on standby, which the name does not lead to any more.
                    self._channel.renew()
                self._outbox = None
                on_lost()

        await keep_dialling(attempt, self._peer, final=(PeerMismatchError,))
