"""Static, request-level batches (FasterTransformer; PAPER 2).

A batch is formed from the first waiting jobs and runs until its last job has ended; no job joins it in the meantime.
Its jobs are in level 0, all others in level 1, which is closed. With several pipeline stages there are as many batches,
which take turns; each is followed by another when it ends.
"""

from collections import deque
from collections.abc import Sequence

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.protocol import Rank
from services.scheduler.job import CLOSING, ENDED, Job
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.without_levels import WithoutLevels


class Static(WithoutLevels):
    """Ranks the jobs of the running batches first."""

    displaces = False

    def __init__(self, batch: BatchLimit) -> None:
        self.closed_level = 1
        self._batch = batch
        self._stage_count = 1
        self._batches: list[set[int]] = []
        """For each batch, the arrival numbers of its jobs that have not ended."""
        self._batch_of: dict[int, set[int]] = {}
        self._waiting: deque[Job] = deque()
        """Those that wait for a batch, in the order in which they came; some have left."""

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Form as many batches as there are stages."""
        self._stage_count = stage_count

    def join(self, job: Job) -> Rank:
        """A new job waits for the next batch."""
        self._waiting.append(job)
        return Rank(1, 0.0, job.arrival_number)

    def foresee(self, job: Job, level: int | None) -> Rank:
        return Rank(1, 0.0, job.arrival_number)

    def leave(self, job: Job, reason: EndReason) -> None:
        """The job's slot stays empty until the batch ends; a job that is still waiting is skipped in its turn."""
        batch = self._batch_of.pop(job.arrival_number, None)
        if batch is not None:
            batch.remove(job.arrival_number)
            if not batch:
                self._batches.remove(batch)

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """Form the next batch when one has ended."""
        begun: list[tuple[Job, Rank]] = []
        while self._waiting and len(self._batches) < self._stage_count:
            jobs = self._next_jobs()
            if not jobs:
                break
            batch = {job.arrival_number for job in jobs}
            self._batches.append(batch)
            self._batch_of.update(dict.fromkeys(batch, batch))
            begun += [(job, Rank(0, 0.0, job.arrival_number)) for job in jobs]
        return begun

    def _next_jobs(self) -> list[Job]:
        jobs: list[Job] = []
        while self._waiting and len(jobs) < self._batch.jobs:
            job = self._waiting.popleft()
            if job.state not in (CLOSING, ENDED):
                jobs.append(job)
        return jobs
