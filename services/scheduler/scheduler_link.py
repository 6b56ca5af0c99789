"""The scheduler's stream to the KV manager (SchedulerLink), redialled whenever it ends.

The messages of a turn of a group are one batch, written in order; some wait for later turns' (held_batches.py).
Messages sent while the stream is down are dropped: the machines open the next stream with all their jobs.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.errors import ProtocolError, SupersededError
from services.domain.ids import Epoch, JobId
from services.domain.protocol import SchedulerToKv
from services.runtime.dialling import DialledStream, keep_dialling
from services.runtime.outbox import Outbox
from services.runtime.terms import NO_TERM, term_metadata
from services.scheduler.held_batches import HeldBatches
from services.scheduler.scheduler_inbox import Inbound, KvBroke, KvClosed, KvMet, KvOpened, KvSaid
from services.wire.scheduler_kvmanager import kv_batch_from_wire, scheduler_batch_to_wire

_log = logging.getLogger(__name__)

MOST_BATCHES = 10_000
"""A KV manager that lets this many turns wait has stopped reading."""

_Traces = Sequence[tuple[JobId, str]]
_Batch = tuple[int, Epoch, Sequence[SchedulerToKv], _Traces]


def _to_wire(batches: Sequence[_Batch]) -> Iterable[wire.SchedulerLinkRequest]:
    return (scheduler_batch_to_wire(*batch) for batch in batches)


def _heard(batch: wire.SchedulerLinkResponse) -> Inbound:
    """A message that can't be read is the fault of its group alone."""
    if batch.newest_epoch:
        return KvMet(Epoch(batch.newest_epoch))
    try:
        return KvSaid(*kv_batch_from_wire(batch))
    except ProtocolError as error:
        return KvBroke(batch.group, error)


class SchedulerLink:
    """The stream to the KV manager; `run` keeps it open."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self.term = NO_TERM
        """Set before `run` by a scheduler that leads in a term."""
        self.traces_of: Callable[[Sequence[SchedulerToKv]], _Traces] = lambda messages: ()
        """The trace contexts of the jobs that messages announce."""
        self._stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)
        self._peer = f"the KV manager at {address}"
        self._batches: HeldBatches | None = None

    def send(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv], may_wait: Callable[[], bool]) -> None:
        """Send the messages of one turn of a group; those that only tell how plans go on may wait for later ones, for
        long if `may_wait`. Does not block; drops them while the stream is down.
        """
        if self._batches is not None:
            self._batches.send(group, epoch, messages, may_wait)

    async def run(self, post: Callable[[Inbound], None]) -> None:
        """Dials forever. Raises SupersededError if another scheduler took over the KV manager."""
        await keep_dialling(lambda is_up: self._attempt(post, is_up), self._peer, final=(SupersededError,))

    async def _attempt(self, post: Callable[[Inbound], None], is_up: Callable[[], None]) -> None:
        async with DialledStream(self._stub.SchedulerLink(metadata=term_metadata(self.term)), self._peer) as stream:
            await stream.connect()
            outbox = Outbox[_Batch](MOST_BATCHES, self._peer)

            def put(group: int, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
                outbox.put((group, epoch, messages, self.traces_of(messages)))

            batches = self._batches = HeldBatches(put)
            is_up()
            _log.info("linked to %s", self._peer)
            post(KvOpened())
            try:
                await stream.exchange(outbox, _to_wire, lambda batch: post(_heard(batch)))
            finally:
                self._batches = None
                batches.drop()
                post(KvClosed())
