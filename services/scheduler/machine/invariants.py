"""The invariants that hold between two turns of the scheduler, and its whole state as a value. Both are O(jobs), for
tests and the explorer.
"""

from math import inf
from typing import TYPE_CHECKING

from services.scheduler.job import Job, JobState
from services.scheduler.machine.plan_lead import MOST_AHEAD_ALONE

if TYPE_CHECKING:
    from services.scheduler.machine.scheduler import Scheduler

PLANNED_STATES = (JobState.RESIDENT, JobState.DRAINING, JobState.CLOSING)


def check(scheduler: "Scheduler") -> None:
    """Raises AssertionError if an invariant does not hold."""
    jobs = list(scheduler.jobs.values())
    closing, draining = scheduler.leaving.closing, scheduler.leaving.draining
    living = [job for job in jobs if job.state is not JobState.CLOSING]
    for job in jobs:
        _check_counts(scheduler, job)
    by_rank = list(scheduler.ranking.by_rank())
    ranks = [job.rank for job in by_rank]
    assert sorted(job.rank for job in living) == ranks, "the order must hold exactly the living jobs"
    assert len({job.rank.arrival_number for job in by_rank}) == len(by_rank), "ranks must be distinct"
    ready = list(scheduler.ranking.ready())
    can_run = [job for job in by_rank if scheduler.iterations.plannable(job)]
    assert ready == can_run, "the ready jobs must be exactly those that can be planned"
    assert all(job.is_ready for job in ready)
    assert all(job.in_flight for job in closing), "a job that could be released was not"
    assert {job.job_id for job in closing} == {job.job_id for job in jobs if job.state is JobState.CLOSING}
    assert all(job.in_flight for job in draining), "consent that could be given was not"
    assert {job.job_id for job in draining} == {job.job_id for job in jobs if job.state is JobState.DRAINING}
    unfinished, lead = scheduler.iterations.unfinished, scheduler.iterations.lead
    # Those that a worker had begun when others were recalled come on top.
    assert len(unfinished) <= (2 * MOST_AHEAD_ALONE if lead.looks_ahead else lead.least)
    assert all(0 < len(flight.parts) <= scheduler.batch.jobs for flight in unfinished)
    assert scheduler.admission.queued_jobs == len(living)
    lending = scheduler.lending
    assert lending.lent_jobs == sum(job.lent_to_token is not None for job in living)
    assert lending.started_jobs == sum(job.first_token_s is not None for job in living)
    assert lending.held_tokens == sum(job.held_tokens for job in jobs)
    assert lending.far_silent_jobs == sum(far for _, far in lending.silent)
    assert scheduler.admission.queued_tokens == sum(job.prompt_tokens + job.max_tokens for job in living)
    if scheduler.linked and any(scheduler.iterations.candidates()) and scheduler.policy.closed_level is None:
        enough = len(unfinished) >= lead.least or scheduler.iterations.recalled_from is not None
        assert enough, "a job can run but is not planned"
    if by_rank:
        top = scheduler.ranking.top
        assert top is by_rank[0], "the top job must be the one that is held on top"


def _check_counts(scheduler: "Scheduler", job: Job) -> None:
    """Check that a job's token counts agree with each other and with the plans under way."""
    parts = [part for flight in scheduler.iterations.unfinished for part in flight.parts if part.job is job]
    samples = sum(part.samples for part in parts)
    assert job.in_flight == len(parts), f"{job.job_id}: plans under way"
    assert not parts or job.state in PLANNED_STATES, f"{job.job_id} is planned but not resident"
    if job.state is JobState.CLOSING:
        return
    assert job.expected_tokens == job.known_tokens + samples, f"{job.job_id}: samples under way"
    assert job.output_tokens < job.max_tokens, f"{job.job_id}: should have ended"
    assert job.expected_tokens - job.prompt_tokens <= job.max_tokens, f"{job.job_id}: past max_tokens"
    if job.state in PLANNED_STATES:
        assert job.finished_tokens <= job.planned_tokens <= job.capacity_tokens, (
            f"{job.job_id}: planned past its capacity"
        )
        assert parts or job.finished_tokens == job.planned_tokens, f"{job.job_id}: planned tokens without a plan"
        assert job.planned_tokens < job.expected_tokens, f"{job.job_id}: nothing left to compute"


def state_key(scheduler: "Scheduler") -> tuple[object, ...]:
    """Everything that determines what the machine will do. Ranks are represented by the order of the jobs and plan
    numbers by their sequence, so that neither grows.
    """
    jobs = scheduler.jobs.values()
    top = scheduler.ranking.top
    iterations = scheduler.iterations
    return (
        scheduler.epoch,
        scheduler.newest_epoch,
        scheduler.kv_connected,
        scheduler.linked,
        frozenset(iterations.passed_over),
        tuple(
            (
                job.job_id,
                job.stay_number,
                job.state,
                job.prompt_tokens,
                job.max_tokens,
                job.known_tokens,
                job.expected_tokens,
                job.planned_tokens,
                job.finished_tokens,
                job.capacity_tokens,
                job.is_held,
                job.cut_plan is not None,
                job.is_guided,
                min(iterations.next_plan - job.last_plan, iterations.stage_count) if job.in_flight else 0,
                job.place.level,
                job.service_s,
                job.waiting_since_s,
                job.promoted,
                job.deadline_s,
                job.last_token_s,
                job.lent_to_token,
                job.held_tokens,
                job.client_number,
                job.length_class,
            )
            for job in jobs
        ),
        scheduler.policy.state_key(),
        scheduler.lending.state_key(),
        scheduler.residency.state_key(),
        tuple(job.job_id for job in scheduler.ranking.by_rank()),
        tuple(job.job_id for job in sorted(jobs, key=lambda job: job.place)),
        None if top is None else (top.job_id, scheduler.ranking.top_ran),
        scheduler.idle_step_left,
        iterations.recalled_from is not None and iterations.next_plan - iterations.recalled_from,
        iterations.plans_ahead,
        scheduler.recalls.has_news,
        iterations.lead.most(1, inf),
        tuple(tuple((part.entry, part.samples) for part in flight.parts) for flight in iterations.unfinished),
    )
