"""Batches for the KV manager that only tell how plans go on wait for the next turn's; all others go at once."""

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
from services.scheduler.held_batches import HeldBatches, can_wait
from tests.builders.waits import until

ONE, TWO = Epoch(1), Epoch(2)
JOB = JobId("a/0")


class Sent:
    """What went, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Epoch, list[SchedulerToKv]]] = []
        self.held = HeldBatches(self._put)

    def _put(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
        self.batches.append((group, epoch, list(messages)))


def finished(number: int) -> Finished:
    return Finished(PlanNumber(number), ())


def planned(number: int) -> Planned:
    return Planned(PlanNumber(number), (PlanEntry(JOB, number, number + 1),))


async def test_every_other_turn_that_only_goes_on_travels_with_the_next() -> None:
    sent = Sent()
    for number in range(4):
        sent.held.send(0, ONE, [finished(number), planned(number + 2)])
    assert sent.batches == [
        (0, ONE, [finished(0), planned(2), finished(1), planned(3)]),
        (0, ONE, [finished(2), planned(4), finished(3), planned(5)]),
    ]


@pytest.mark.parametrize(
    "message", [Arrive(ArrivedJob(JOB, 3, 5, 0)), Order(()), Ack(JOB), Release(JOB)], ids=lambda one: type(one).__name__
)
async def test_anything_else_goes_at_once_behind_what_waited(message: SchedulerToKv) -> None:
    sent = Sent()
    sent.held.send(0, ONE, [planned(0)])
    sent.held.send(0, ONE, [finished(0), message, planned(1)])
    assert sent.batches == [(0, ONE, [planned(0), finished(0), message, planned(1)])]
    assert not can_wait([finished(0), message, planned(1)])


async def test_the_end_of_a_plan_that_no_other_follows_does_not_wait() -> None:
    sent = Sent()
    sent.held.send(0, ONE, [finished(0)])
    assert sent.batches == [(0, ONE, [finished(0)])]


async def test_groups_and_epochs_do_not_mix() -> None:
    sent = Sent()
    sent.held.send(0, ONE, [planned(0)])
    sent.held.send(1, ONE, [planned(0)])
    sent.held.send(0, TWO, [planned(0)])
    sent.held.send(1, ONE, [finished(0)])
    assert sent.batches == [(0, ONE, [planned(0)]), (0, TWO, [planned(0)]), (1, ONE, [planned(0), finished(0)])]


async def test_what_waits_goes_by_itself_where_an_iteration_takes_long() -> None:
    sent = Sent()
    sent.held.send(0, ONE, [planned(0)])
    assert sent.batches == []
    await until(lambda: sent.batches == [(0, ONE, [planned(0)])])


async def test_what_waits_is_forgotten_with_the_stream() -> None:
    sent = Sent()
    sent.held.send(0, ONE, [planned(0)])
    sent.held.drop()
    sent.held.send(0, ONE, [finished(0)])
    assert sent.batches == [(0, ONE, [finished(0)])]
