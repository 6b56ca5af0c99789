"""Which jobs change their group: away from a group without a worker, from one whose worker is about to end, and to one
that has room. Pure; part of the router.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from services.domain.ids import JobId
from services.scheduler.machine.moving import NO_LEVEL, may_leave
from services.scheduler.machine.scheduler_events import MovingJob, Submit, TakeIn
from services.scheduler.routing.draining import GroupDrain
from services.scheduler.routing.group_forecast import GroupForecast
from services.scheduler.routing.work_order import RoutedJob

if TYPE_CHECKING:
    from services.scheduler.routing.router import Router

MOST_LOOKS = 64
"""Waiting jobs that are examined for a group with free places."""
MOST_MOVES_OF_A_JOB = 4
"""How often a job may move although its group has a worker."""
MOVING_GAIN = 0.9
"""A job moves between living groups if it ends in this share of the time."""


class JobMove(NamedTuple):
    """A job's move, to be carried out in this turn: Withdraw there, TakeIn here."""

    job_id: JobId
    from_group: int
    to_group: int


def let_go(
    router: "Router", drain: GroupDrain, draining: GroupForecast, ready: Sequence[GroupForecast], most: int
) -> list[JobMove]:
    """The jobs that are held in a group whose worker is about to end, and that no plan names any more."""
    machine = router.machines[draining.number]
    moves: list[JobMove] = []
    left: list[JobId] = []
    for job_id in drain.leaving:
        job = router.jobs.get(job_id)
        if job is None or job.group != draining.number:
            continue
        if len(moves) < most and may_leave(machine, job_id) and (chosen := router.choose(job, ready)) is not None:
            moves.append(JobMove(job_id, draining.number, chosen[0].number))
            router.enter(job, *chosen)
        else:
            left.append(job_id)
    drain.leaving = left
    return moves


def evacuated(router: "Router", dead: GroupForecast, ready: Sequence[GroupForecast], most: int) -> list[JobMove]:
    """The best jobs of a group without a worker, each to the group that will end it first."""
    widest = max(one.most_tokens for one in ready)
    machine = router.machines[dead.number]
    fitting = (job for job in dead.order if job.whole_tokens <= widest and may_leave(machine, job.job_id))
    moves: list[JobMove] = []
    for job in list(islice(fitting, most)):
        chosen = router.choose(job, ready)
        assert chosen is not None
        moves.append(JobMove(job.job_id, dead.number, chosen[0].number))
        router.enter(job, *chosen)
    return moves


def taken_over(router: "Router", taker: GroupForecast, ready: Sequence[GroupForecast], room: int) -> list[JobMove]:
    """Waiting jobs for a group with room in its batch, from the group with the largest backlog that has some."""
    givers = [
        one for one in ready if one is not taker and one.order.whole.unstarted and len(one.order) > one.batch_slots
    ]
    moves: list[JobMove] = []
    for giver in sorted(givers, key=lambda one: (-one.backlog_s, one.number)):
        machine = router.machines[giver.number]
        for job in giver.order.after(giver.batch_slots, MOST_LOOKS):
            if len(moves) == room:
                return moves
            waits = job.prefill_tokens and job.moves < MOST_MOVES_OF_A_JOB and job.whole_tokens <= taker.most_tokens
            if not waits or not may_leave(machine, job.job_id):
                continue
            rank = router.foreseen(taker, job)
            if taker.finish_s(job, rank) > MOVING_GAIN * giver.finish_s(job, job.rank):
                break
            moves.append(JobMove(job.job_id, giver.number, taker.number))
            job.moves += 1
            router.enter(job, taker, rank)
    return moves


def taken_up(job: RoutedJob, submit: Submit, now_s: float) -> TakeIn:
    """The job as its machine takes it in. Its KV was another scheduler's. When that one first ran it nobody knows any
    more, so a job with output counts as first run now.
    """
    began_s = now_s if job.output_tokens else None
    moving = MovingJob(
        job_id=job.job_id,
        arrival_number=job.arrival_number,
        prompt_tokens=job.prompt_tokens,
        known_tokens=job.known_tokens,
        finished_tokens=job.known_tokens - 1 if job.output_tokens else 0,
        max_tokens=job.max_tokens,
        arrived_s=job.arrived_s,
        waiting_since_s=now_s,
        deadline_s=submit.deadline_s,
        client_number=job.client_number,
        level=NO_LEVEL,
        service_s=0.0,
        promoted=False,
        preemptions=0,
        first_planned_s=began_s,
        first_token_s=began_s,
        last_token_s=began_s,
        is_guided=submit.is_guided,
    )
    return TakeIn(moving)
