"""Job counts per level and location, for operators."""

from collections.abc import Container
from typing import TYPE_CHECKING

from services.domain.ids import JobId
from services.domain.server_status import LevelStatus
from services.scheduler.job import JobState

if TYPE_CHECKING:
    from services.scheduler.machine.scheduler import Scheduler


def level_statuses(scheduler: "Scheduler", swapped_out: Container[JobId]) -> tuple[LevelStatus, ...]:
    """Jobs by level, without ended jobs. The scheduler does not know where the KV of a job is that is not resident, so
    `swapped_out` comes from the KV manager. O(jobs).
    """
    quanta_s = scheduler.policy.quanta_s or (0.0,)
    running, waiting, swapped = ([0] * len(quanta_s) for _ in range(3))
    for job in scheduler.jobs.values():
        if job.state is JobState.CLOSING:
            continue
        is_swapped = job.state is JobState.OUT and job.job_id in swapped_out
        kind = running if job.in_flight else swapped if is_swapped else waiting
        kind[min(job.place.level, len(quanta_s) - 1)] += 1
    return tuple(
        LevelStatus(level, quantum_s, running[level], waiting[level], swapped[level])
        for level, quantum_s in enumerate(quanta_s)
    )
