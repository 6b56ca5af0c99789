"""A plan under way, as the scheduler remembers it."""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.ids import JobId, PlanNumber
from services.domain.protocol import PlanEntry
from services.scheduler.job import Job


class PlanPart(NamedTuple):
    """A job's part of a plan. `samples`: the result will hold a token for it."""

    job: Job
    entry: PlanEntry
    samples: bool


@dataclass(slots=True, eq=False)
class Flight:
    """A plan under way. `jobs` and `entries` are parallel lists; the result holds a token for each job in
    `sampling_job_ids`, in this order. `may_wait`: jobs that it starts, if their guides are compiled by then. `is_sure`:
    it is not recalled, because it is not for decodes alone, or a job in it is promoted or on a loan (rule 42).
    """

    plan_number: PlanNumber
    jobs: list[Job]
    entries: tuple[PlanEntry, ...]
    sampling_job_ids: list[JobId]
    cut_after_s: tuple[tuple[JobId, float], ...]
    made_s: float = 0.0
    may_wait: tuple[JobId, ...] = ()
    is_sure: bool = False

    @property
    def parts(self) -> list[PlanPart]:
        """The parts by rank."""
        sampling = set(self.sampling_job_ids)
        return [
            PlanPart(job, entry, job.job_id in sampling) for job, entry in zip(self.jobs, self.entries, strict=True)
        ]
