"""When a job may leave the explored group for another one: at any moment that allows it, or because it is held."""

from collections.abc import Callable, Iterator
from typing import Any

from services.domain.ids import JobId
from services.scheduler.machine import moving
from services.scheduler.machine.scheduler import Scheduler
from tests.protocol.instance import Instance

Asks = Callable[[Callable[[Scheduler, JobId], bool], int], bool]
"""What the scheduler answers to a question about a job."""


def possible_moves(instance: Instance, state: Any, asks: Asks) -> Iterator[tuple[Any, ...]]:
    """Jobs may leave for another group, and come back; one that is held leaves as soon as it may. `state`: a State."""
    jobs = range(state.arrived)
    if state.away is not None:
        yield ("return",)
        return
    if state.moves < instance.moves:
        yield from (("leave", job) for job in jobs if asks(moving.may_leave, job))
    if instance.holds:
        yield from (("let go", job) for job in jobs if asks(is_let_go, job))
    if state.holds < instance.holds:
        yield from (("hold", job) for job in jobs if asks(Scheduler.knows, job))


def is_let_go(machine: Scheduler, job_id: JobId) -> bool:
    """Whether the job is held and may leave."""
    return machine.knows(job_id) and machine.jobs[job_id].is_held and moving.may_leave(machine, job_id)
