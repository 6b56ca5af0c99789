"""The messages on the links, and their numbers.

Numbers of plans and commands only grow, so states of the world that differ in nothing else would never be recognised.
On the links a command has its distance to the next one that the KV manager will give, which is renewed when it gives
some; plans have no number, because they are made, run and finished in order. Both are put back before a machine sees
them.
"""

from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, NamedTuple

from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Applied,
    Done,
    Finished,
    IterationResult,
    Jobs,
    KvToWorker,
    PlanEntry,
    Planned,
    Recalled,
    SampledToken,
)
from services.kvmanager.machine import kv_manager_events as kv
from services.kvmanager.machine.kv_manager import KvManager
from services.scheduler.machine import scheduler_events as sched
from services.scheduler.machine.scheduler import Scheduler

NO_NUMBER = PlanNumber(-1)


class PlanOnLink(NamedTuple):
    """A plan on its way. `samples`: jobs that get a token; `may_be_cut`: jobs whose prefill may be abandoned."""

    epoch: Epoch
    entries: tuple[PlanEntry, ...]
    sampling_job_ids: tuple[JobId, ...]
    may_be_cut_job_ids: tuple[JobId, ...]


class CommandsOnLink(NamedTuple):
    """A batch of commands on its way."""

    epoch: Epoch
    commands: tuple[KvToWorker, ...]


class Batches:
    """What is on the links, by number. Values of different kinds may be equal as tuples (Ack and Release of a job),
    so their text tells them apart.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._batches: list[Any] = []
        self._same: dict[int, int] = {}
        """By identity, of the batches that are kept."""
        self._made: dict[Hashable, int] = {}

    def put(self, batch: Any) -> int:
        """Number of a batch."""
        known = self._same.get(id(batch))
        if known is not None:
            return known
        number = self._numbers.setdefault(repr(batch), len(self._batches))
        if number == len(self._batches):
            self._batches.append(batch)
            self._same[id(batch)] = number
        return number

    def made(self, of: Hashable, make: Callable[[], Any]) -> int:
        """Number of the batch that `make` gives, which must depend on `of` only; it is made once."""
        number = self._made.get(of)
        if number is None:
            number = self._made[of] = self.put(make())
        return number

    def get(self, number: int) -> Any:
        """The batch with this number."""
        return self._batches[number]


def with_plan(event: sched.Event, machine: Scheduler) -> sched.Event:
    """A result with the number of its plan."""
    if isinstance(event, IterationResult) and machine.iterations.unfinished:
        plan_number = machine.iterations.unfinished[0].plan_number
        return IterationResult(event.epoch, plan_number, event.tokens, event.cut_job_ids, event.duration_s)
    return event


def without_plan(message: Any) -> Any:
    """A message of the scheduler without the number of its plan."""
    return message._replace(plan_number=NO_NUMBER) if isinstance(message, Planned | Finished | Recalled) else message


def numbered(events: tuple[kv.Event, ...], machine: KvManager) -> list[kv.Event]:
    """Events with the numbers as this KV manager knows them."""
    ledger = machine._ledger
    plans = [] if ledger is None else list(ledger.plans)
    next_command = 1 if ledger is None else ledger.next_command
    next_plan_number = PlanNumber(plans[-1] + 1) if plans else PlanNumber(0)
    known: list[kv.Event] = []
    for event in events:
        if isinstance(event, kv.FromScheduler):
            message = event.message
            if isinstance(message, Jobs):
                plans, next_plan_number = [], PlanNumber(0)
            elif isinstance(message, Planned):
                event = kv.FromScheduler(event.epoch, Planned(next_plan_number, message.entries))
                plans.append(next_plan_number)
                next_plan_number = PlanNumber(next_plan_number + 1)
            elif isinstance(message, Finished) and plans:
                event = kv.FromScheduler(event.epoch, message._replace(plan_number=plans.pop(0)))
            elif isinstance(message, Recalled) and plans:
                event = kv.FromScheduler(event.epoch, message._replace(plan_number=plans.pop()))
        known.append(_shifted(event, next_command))
    return known


def shifted_batch(batch: Any, by: int) -> Any:
    """Commands, or the answer to some, whose numbers are greater by `by`."""
    if not isinstance(batch, CommandsOnLink):
        return tuple(_shifted(event, by) for event in batch)
    moved = (command._replace(command_number=CommandNumber(command.command_number + by)) for command in batch.commands)
    return batch._replace(commands=tuple(moved))


def _shifted(event: kv.Event, by: int) -> kv.Event:
    """The acknowledgement of a command whose number is greater by `by`."""
    if isinstance(event, kv.FromWorker) and isinstance(event.message, Applied | Done):
        moved = event.message._replace(command_number=CommandNumber(event.message.command_number + by))
        return kv.FromWorker(event.epoch, moved)
    return event


def numbered_from_0(batch: Sequence[KvToWorker]) -> tuple[KvToWorker, ...]:
    """The commands as a worker's tables know them."""
    return tuple(command._replace(command_number=CommandNumber(index)) for index, command in enumerate(batch))


def all_applied(epoch: Epoch, batch: Sequence[KvToWorker]) -> tuple[kv.Event, ...]:
    """The answer to a batch of commands, once all are applied."""
    return tuple(kv.FromWorker(epoch, Applied(command.command_number)) for command in batch)


def result_of(plan: PlanOnLink, ended: Container[JobId], cut: tuple[JobId, ...]) -> IterationResult:
    """The result of a plan without these jobs' prefills."""
    samples = (job_id for job_id in plan.sampling_job_ids if job_id not in cut)
    tokens = tuple(SampledToken(job_id, 0, job_id in ended) for job_id in samples)
    return IterationResult(plan.epoch, NO_NUMBER, tokens, cut, 1.0)
