"""Batches for the KV manager that can wait for the next turn's, and travel with it as one message.

Most turns of a busy scheduler tell the KV manager only how plans go on: one ended, another was made. It has to know
that soon, so that jobs grow, but not at once: a job grows some tokens before its last block is full (PROTOCOL 16). To
either end a message costs more than what is in it, because it wakes threads on cores that compute. So every other
batch of that kind waits for the next one. A batch with anything else in it never waits, and takes along what did.

The order of the messages stays, and the links may be slow by any measure (docs/protocol.md). Two bounds keep what is
held from being late: a batch is held only if it tells of a new plan, whose result will cause a turn; and it is held for
HOLD_LIMIT_S at most, however long the iteration takes.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.domain.ids import Epoch
from services.domain.protocol import Finished, Planned, SchedulerToKv

HOLD_LIMIT_S = 0.02

PutBatch = Callable[[int, Epoch, Sequence[SchedulerToKv]], None]


class _HeldBatch(NamedTuple):
    """A batch that waits, until the timer fires at the latest."""

    epoch: Epoch
    messages: Sequence[SchedulerToKv]
    timer: asyncio.TimerHandle


def can_wait(messages: Sequence[SchedulerToKv]) -> bool:
    """Whether a turn's messages tell of a new plan, and of nothing but plans."""
    kinds = {type(message) for message in messages}
    return Planned in kinds and kinds <= {Planned, Finished}


class HeldBatches:
    """What waits, of each group at most one turn's messages. `put` is called with what goes. Used on one event loop."""

    def __init__(self, put: PutBatch) -> None:
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._held: dict[int, _HeldBatch] = {}

    def send(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
        """Send the messages of a turn, with those that waited, or let them wait."""
        held = self._held.pop(group, None)
        if held is None:
            if can_wait(messages):
                timer = self._loop.call_later(HOLD_LIMIT_S, self._flush, group)
                self._held[group] = _HeldBatch(epoch, messages, timer)
                return
        else:
            held.timer.cancel()
            if held.epoch == epoch:
                messages = [*held.messages, *messages]
            else:
                self._put(group, held.epoch, held.messages)
        self._put(group, epoch, messages)

    def drop(self) -> None:
        """Forget what waits: the stream is down, and the next one opens with all jobs."""
        for held in self._held.values():
            held.timer.cancel()
        self._held.clear()

    def _flush(self, group: int) -> None:
        held = self._held.pop(group)
        self._put(group, held.epoch, held.messages)
