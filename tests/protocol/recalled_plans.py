"""Plans that the scheduler recalls and the worker gives back: by their count, since the links know no numbers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from services.domain.ids import Epoch, PlanNumber
from services.domain.protocol import PlansGivenBack
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import RecallPlans
from tests.protocol.links import Batches, with_plan


class RecallOnLink(NamedTuple):
    """A recall on its way, behind the plans that it is about: so many of the last ones."""

    epoch: Epoch
    plans: int


class GivenBackOnLink(NamedTuple):
    """The answer on its way."""

    epoch: Epoch
    plans: int


def on_link(command: RecallPlans, machine: Scheduler) -> RecallOnLink:
    """A recall as it travels."""
    numbers = [flight.plan_number for flight in machine.iterations.unfinished]
    return RecallOnLink(command.epoch, sum(number >= command.first_plan_number for number in numbers))


def with_numbers(events: Sequence[Any], machine: Scheduler) -> list[Any]:
    """Events with the numbers of the plans as this scheduler knows them."""
    return [
        _given_back(one, machine) if isinstance(one, GivenBackOnLink) else with_plan(one, machine) for one in events
    ]


def _given_back(answer: GivenBackOnLink, machine: Scheduler) -> PlansGivenBack:
    numbers = [flight.plan_number for flight in machine.iterations.unfinished]
    first: PlanNumber | None = numbers[-answer.plans] if 0 < answer.plans <= len(numbers) else None
    return PlansGivenBack(answer.epoch, first)


def without_stale(plans: tuple[int, ...], batches: Batches, epoch: Epoch) -> tuple[int, ...]:
    """What the worker of this epoch takes: a recall of an earlier one is about plans that are gone."""
    sent = ((number, batches.get(number)) for number in plans)
    return tuple(number for number, one in sent if not isinstance(one, RecallOnLink) or one.epoch == epoch)


def possible_answers(batches: Batches, waiting: Sequence[int]) -> Iterator[tuple[str, int]]:
    """A worker that was sent this, with a recall at the end, may have begun none of the plans, or any number of them;
    those that it has begun it will run. The step names how many of the recalled ones stay.
    """
    recall = batches.get(waiting[-1])
    if isinstance(recall, RecallOnLink):
        yield from (("give back", kept) for kept in range(min(recall.plans, len(waiting) - 1) + 1))


def answered(batches: Batches, waiting: tuple[int, ...], kept: int) -> tuple[tuple[int, ...], GivenBackOnLink]:
    """What of all that was sent stays with the worker, and its answer."""
    *plans, last = waiting
    recall: RecallOnLink = batches.get(last)
    given_back = min(recall.plans, len(plans)) - kept
    return tuple(plans[: len(plans) - given_back]), GivenBackOnLink(recall.epoch, given_back)
