"""A job's way out of a group and into another (PROTOCOL rule 27), or from another scheduler into one (rule 37).

A job leaves only while no unfinished plan names it, and while it is OUT, or has blocks but has computed nothing. A job
that is held, because the worker is about to end, leaves also with what is computed of it (rule 41). For the KV manager
it ends here and arrives there; a move takes its tokens, its age and its level with it, and leaves its KV behind.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import Arrive, ArrivedJob, Rank, Release
from services.scheduler.job import CLOSING, ENDED, OUT, RESIDENT, Job
from services.scheduler.machine.scheduler_events import MovingJob, Withdrawn

if TYPE_CHECKING:
    from services.scheduler.machine.scheduler import Scheduler

NO_LEVEL = -1
"""The level of a job that is in no group of this scheduler so far."""


def may_leave(scheduler: "Scheduler", job_id: JobId) -> bool:
    """Whether the job is here and `withdraw` would let it go."""
    job = scheduler.jobs.get(job_id)
    if job is None or job.in_flight:
        return False
    return job.state is OUT or (job.state is RESIDENT and (job.is_held or not job.finished_tokens))


def hold(scheduler: "Scheduler", job_ids: Sequence[JobId]) -> None:
    """Plan these jobs no more, and the others as ever. O(jobs)."""
    held = frozenset(job_ids)
    for job in scheduler.jobs.values():
        if job.state is not CLOSING and job.is_held is not (job.job_id in held):
            job.is_held = not job.is_held
            scheduler.iterations.refresh(job)


def withdraw(scheduler: "Scheduler", job_id: JobId, now_s: float) -> tuple[Release, Withdrawn] | None:
    """Forget the job without ending it; None if it has to stay."""
    if not may_leave(scheduler, job_id):
        return None
    job = scheduler.jobs.pop(job_id)
    scheduler.policy.leave(job, EndReason.CANCELLED)
    scheduler.iterations.backlog.leave(job, EndReason.CANCELLED)
    scheduler.lending.ended(job)
    scheduler.ranking.remove(job)
    scheduler.iterations.running.pop(job_id, None)
    scheduler.admission.moved_away(job.prompt_tokens, job.max_tokens)
    scheduler.counters.moves += 1
    job.move(CLOSING, now_s, "moves to another group")
    job.move(ENDED, now_s, "moved")
    moving = MovingJob(
        job_id=job_id,
        arrival_number=job.arrival_number,
        prompt_tokens=job.prompt_tokens,
        known_tokens=job.known_tokens,
        finished_tokens=job.finished_tokens,
        max_tokens=job.max_tokens,
        arrived_s=job.arrived_s,
        waiting_since_s=job.waiting_since_s,
        deadline_s=job.deadline_s,
        client_number=job.client_number,
        level=job.place.level,
        service_s=job.service_s,
        promoted=job.promoted,
        preemptions=job.preemptions,
        first_planned_s=job.first_planned_s,
        first_token_s=job.first_token_s,
        last_token_s=job.last_token_s,
        is_guided=job.is_guided,
    )
    return Release(job_id), Withdrawn(moving)


def take_in(scheduler: "Scheduler", moving: MovingJob, stay_number: int, now_s: float) -> Arrive:
    """Go on with a job of another group, or of another scheduler if its level is NO_LEVEL, from its last token."""
    assert moving.job_id not in scheduler.jobs, f"job {moving.job_id} is in this group already"
    job = _arriving(moving, stay_number)
    level = moving.level
    if level == NO_LEVEL:
        level = scheduler.policy.foresee(job, None).level
        scheduler.counters.jobs_admitted += 1
    job.place = job.rank = scheduler.policy.rejoin(job, level)
    scheduler.jobs[job.job_id] = job
    scheduler.ranking.add(job)
    scheduler.promotion.watch(job)
    scheduler.lending.took_in(job, now_s)
    scheduler.iterations.backlog.enter(job)
    scheduler.admission.enter(job.prompt_tokens, job.max_tokens)
    if job.deadline_s is not None:
        scheduler.deadlines.push(job.deadline_s, job)
    scheduler.counters.recomputed_tokens += moving.finished_tokens
    return Arrive(ArrivedJob(job.job_id, job.known_tokens, job.most_tokens, stay_number))


def foresee(scheduler: "Scheduler", moving: MovingJob) -> Rank:
    """The rank that the job would get here, a new one if its level is NO_LEVEL. Changes nothing."""
    return scheduler.policy.foresee(_arriving(moving, 0), None if moving.level == NO_LEVEL else moving.level)


def _arriving(moving: MovingJob, stay_number: int) -> Job:
    """The job as it comes: nothing of it is computed here."""
    nowhere = Rank(0, 0.0, moving.arrival_number)
    job = Job(
        moving.job_id,
        moving.arrival_number,
        stay_number,
        moving.prompt_tokens,
        moving.max_tokens,
        moving.arrived_s,
        moving.deadline_s,
        nowhere,
        nowhere,
        moving.known_tokens,
        moving.known_tokens,
        moving.client_number,
        moving.is_guided,
    )
    job.waiting_since_s, job.service_s = moving.waiting_since_s, moving.service_s
    job.promoted, job.preemptions = moving.promoted, moving.preemptions
    job.first_planned_s, job.first_token_s = moving.first_planned_s, moving.first_token_s
    job.last_token_s = moving.last_token_s
    return job
