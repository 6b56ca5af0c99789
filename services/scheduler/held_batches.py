"""Batches for the KV manager that can wait for those of later turns, and travel with them as one message.

Most turns of a busy scheduler tell the KV manager only how plans go on: one ended, another was made. To either end a
message costs more than what is in it, because it wakes threads on cores that compute. So such batches wait. One with
anything else in it never does, and takes along what did.

- While no decision of the KV manager depends on the plans (machine/kv_news.py), they wait for LONG_HOLD_S, or until
  their plans have MOST_ENTRIES.
- Else it has to know soon, so that jobs grow, but not at once: a job grows some tokens before its last block is full
  (PROTOCOL 16). So every other batch waits for the next one, for HOLD_LIMIT_S at most.

The order of the messages stays, and the links may be slow by any measure (docs/protocol.md). A batch waits only if it
tells of a new plan, whose result will cause a turn.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.domain.ids import Epoch
from services.domain.protocol import Finished, Planned, SchedulerToKv

HOLD_LIMIT_S = 0.02
LONG_HOLD_S = 1.0
MOST_ENTRIES = 4096
"""Each of some tens of bytes: a message of some hundred kilobytes."""

PutBatch = Callable[[int, Epoch, Sequence[SchedulerToKv]], None]


@dataclass(slots=True)
class _HeldBatch:
    """What waits of one group, until the timer fires at the latest."""

    epoch: Epoch
    messages: list[SchedulerToKv]
    entries: int
    timer: asyncio.TimerHandle


def _entries(messages: Sequence[SchedulerToKv]) -> int:
    """How many jobs the plans name, one that several name as often."""
    return sum(len(message.entries) for message in messages if isinstance(message, Planned))


def can_wait(messages: Sequence[SchedulerToKv]) -> bool:
    """Whether a turn's messages tell of a new plan, and of nothing but plans."""
    kinds = {type(message) for message in messages}
    return Planned in kinds and kinds <= {Planned, Finished}


class HeldBatches:
    """What waits, by group. `put` is called with what goes. Used on one event loop."""

    def __init__(self, put: PutBatch) -> None:
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._held: dict[int, _HeldBatch] = {}

    def send(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv], may_wait: Callable[[], bool]) -> None:
        """Send the messages of a turn, with those that waited, or let them wait: for long if `may_wait`, which is asked
        only where they can wait at all.
        """
        held = self._held.get(group)
        if held is not None and held.epoch != epoch:
            self._flush(group)
            held = None
        waits = can_wait(messages)
        is_long = waits and may_wait()
        if held is None and waits:
            timer = self._loop.call_later(LONG_HOLD_S if is_long else HOLD_LIMIT_S, self._flush, group)
            self._held[group] = _HeldBatch(epoch, list(messages), _entries(messages), timer)
        elif held is None:
            self._put(group, epoch, messages)
        else:
            held.messages.extend(messages)
            held.entries += _entries(messages)
            if not is_long or held.entries >= MOST_ENTRIES:
                self._flush(group)

    def drop(self) -> None:
        """Forget what waits: the stream is down, and the next one opens with all jobs."""
        for held in self._held.values():
            held.timer.cancel()
        self._held.clear()

    def _flush(self, group: int) -> None:
        held = self._held.pop(group)
        held.timer.cancel()
        self._put(group, held.epoch, held.messages)
