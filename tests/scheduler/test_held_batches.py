"""Batches for the KV manager that only tell how plans go on wait for later turns', for long where nothing that it
decides depends on them; all others go at once.
"""

from collections.abc import Sequence

import pytest

from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Finished,
    Order,
    PlanEntry,
    Planned,
    Release,
    SchedulerToKv,
)
from services.scheduler import held_batches
from services.scheduler.held_batches import MOST_ENTRIES, HeldBatches, can_wait
from tests.builders.waits import until

ONE, TWO = Epoch(1), Epoch(2)
JOB = JobId("a/0")


class Sent:
    """What went, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Epoch, list[SchedulerToKv]]] = []
        self.held = HeldBatches(self._put)
        self.may_wait = False
        self.asked = 0

    def send(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
        """A turn's messages, from a scheduler that says whether the KV manager has anything to decide by them."""

        def may_wait() -> bool:
            self.asked += 1
            return self.may_wait

        self.held.send(group, epoch, messages, may_wait)

    def _put(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
        self.batches.append((group, epoch, list(messages)))


def finished(number: int) -> Finished:
    return Finished(PlanNumber(number), ())


def planned(number: int) -> Planned:
    return Planned(PlanNumber(number), (PlanEntry(JOB, number, number + 1),))


async def test_every_other_turn_that_only_goes_on_travels_with_the_next() -> None:
    sent = Sent()
    for number in range(4):
        sent.send(0, ONE, [finished(number), planned(number + 2)])
    assert sent.batches == [
        (0, ONE, [finished(0), planned(2), finished(1), planned(3)]),
        (0, ONE, [finished(2), planned(4), finished(3), planned(5)]),
    ]


@pytest.mark.parametrize(
    "message", [Arrive(ArrivedJob(JOB, 3, 5, 0)), Order(()), Ack(JOB), Release(JOB)], ids=lambda one: type(one).__name__
)
async def test_anything_else_goes_at_once_behind_what_waited(message: SchedulerToKv) -> None:
    sent = Sent()
    sent.send(0, ONE, [planned(0)])
    sent.send(0, ONE, [finished(0), message, planned(1)])
    assert sent.batches == [(0, ONE, [planned(0), finished(0), message, planned(1)])]
    assert not can_wait([finished(0), message, planned(1)])


async def test_the_end_of_a_plan_that_no_other_follows_does_not_wait() -> None:
    sent = Sent()
    sent.send(0, ONE, [finished(0)])
    assert sent.batches == [(0, ONE, [finished(0)])]


async def test_groups_and_epochs_do_not_mix() -> None:
    sent = Sent()
    sent.send(0, ONE, [planned(0)])
    sent.send(1, ONE, [planned(0)])
    sent.send(0, TWO, [finished(0)])
    sent.send(1, ONE, [finished(0)])
    assert sent.batches == [(0, ONE, [planned(0)]), (0, TWO, [finished(0)]), (1, ONE, [planned(0), finished(0)])]


async def test_what_waits_goes_by_itself_where_an_iteration_takes_long() -> None:
    sent = Sent()
    sent.send(0, ONE, [planned(0)])
    assert sent.batches == []
    await until(lambda: sent.batches == [(0, ONE, [planned(0)])])


async def test_what_waits_is_forgotten_with_the_stream() -> None:
    sent = Sent()
    sent.send(0, ONE, [planned(0)])
    sent.held.drop()
    sent.send(0, ONE, [finished(0)])
    assert sent.batches == [(0, ONE, [finished(0)])]


def goes_on(number: int) -> list[SchedulerToKv]:
    """A turn in which a plan ended and another was made."""
    return [finished(number), planned(number + 1)]


async def test_turns_on_which_nothing_depends_travel_together() -> None:
    sent = Sent()
    sent.may_wait = True
    turns = [goes_on(number) for number in range(MOST_ENTRIES)]
    for turn in turns[:-1]:
        sent.send(0, ONE, turn)
    assert sent.batches == []
    sent.send(0, ONE, turns[-1])
    assert sent.batches == [(0, ONE, [message for turn in turns for message in turn])]


async def test_they_go_with_the_first_turn_on_which_something_depends() -> None:
    sent = Sent()
    sent.may_wait = True
    for number in range(3):
        sent.send(0, ONE, goes_on(number))
    sent.may_wait = False
    sent.send(0, ONE, goes_on(3))
    assert sent.batches == [(0, ONE, [message for number in range(4) for message in goes_on(number)])]


async def test_they_go_with_the_first_turn_that_tells_of_something_else() -> None:
    sent = Sent()
    sent.may_wait = True
    sent.send(0, ONE, goes_on(0))
    sent.send(0, ONE, goes_on(1))
    sent.send(0, ONE, [finished(2), Release(JOB)])
    assert sent.batches == [(0, ONE, [*goes_on(0), *goes_on(1), finished(2), Release(JOB)])]
    assert sent.asked == 2, "whether that could wait is asked only of what tells of plans alone"


async def test_they_go_by_themselves_where_iterations_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_batches, "LONG_HOLD_S", 0.05)
    sent = Sent()
    sent.may_wait = True
    sent.send(0, ONE, goes_on(0))
    sent.send(0, ONE, goes_on(1))
    assert sent.batches == []
    await until(lambda: sent.batches == [(0, ONE, [*goes_on(0), *goes_on(1)])])
