"""Jobs as operators see them: their counts per level and location, and the first of them one by one."""

from collections.abc import Container
from heapq import nsmallest
from typing import TYPE_CHECKING

from services.domain.ids import JobId
from services.domain.server_status import JobPhase, JobStatus, KvSite, LevelStatus
from services.scheduler.job import CLOSING, OUT, Job

if TYPE_CHECKING:
    from services.scheduler.machine.scheduler import Scheduler


def level_statuses(scheduler: "Scheduler", swapped_out: Container[JobId]) -> tuple[LevelStatus, ...]:
    """Jobs by level, without ended jobs. The scheduler does not know where the KV of a job is that is not resident, so
    `swapped_out` comes from the KV manager. O(jobs).
    """
    quanta_s = scheduler.policy.quanta_s or (0.0,)
    running, waiting, swapped = ([0] * len(quanta_s) for _ in range(3))
    kinds = {JobPhase.RUNNING: running, JobPhase.WAITING: waiting, JobPhase.SWAPPED_OUT: swapped}
    for job in scheduler.jobs.values():
        if job.state is not CLOSING:
            kinds[_phase(job, swapped_out)][_level(job, len(quanta_s))] += 1
    return tuple(
        LevelStatus(level, quantum_s, running[level], waiting[level], swapped[level])
        for level, quantum_s in enumerate(quanta_s)
    )


def job_statuses(scheduler: "Scheduler", group: int, swapped_out: Container[JobId], most: int) -> tuple[JobStatus, ...]:
    """The first `most` jobs by rank, without ended jobs; `group` is the machine's number. O(jobs)."""
    levels = len(scheduler.policy.quanta_s or (0.0,))
    living = (job for job in scheduler.jobs.values() if job.state is not CLOSING)
    return tuple(
        JobStatus(
            alias=f"{group}.{job.stay_number}",
            group=group,
            level=_level(job, levels),
            phase=_phase(job, swapped_out),
            kv=_place(job, swapped_out),
            prompt_tokens=job.prompt_tokens,
            output_tokens=job.output_tokens,
        )
        for job in nsmallest(most, living, key=lambda job: job.rank)
    )


def _level(job: Job, levels: int) -> int:
    return min(job.place.level, levels - 1)


def _phase(job: Job, swapped_out: Container[JobId]) -> JobPhase:
    if job.in_flight:
        return JobPhase.RUNNING
    return JobPhase.SWAPPED_OUT if job.state is OUT and job.job_id in swapped_out else JobPhase.WAITING


def _place(job: Job, swapped_out: Container[JobId]) -> KvSite:
    if job.state is not OUT:
        return KvSite.DEVICE
    return KvSite.HOST if job.job_id in swapped_out else KvSite.NONE
