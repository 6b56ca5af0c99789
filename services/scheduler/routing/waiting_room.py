"""Jobs that were admitted and have no worker group yet: none has come so far, or all are about to end. Pure.

They wait in the order in which they came. Their number is bounded where they are admitted; each keeps its deadline, and
can be cancelled.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import End, Submit

LEAST_SWEEP = 1024


class _Waiting(NamedTuple):
    submit: Submit
    arrived_s: float
    is_resumed: bool


class WaitingRoom:
    """The jobs, and their deadlines."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Waiting] = {}
        self._deadlines: list[tuple[float, JobId]] = []
        """A heap. An entry of a job that has left stays until its time comes, or until they are too many."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._jobs

    @property
    def job_ids(self) -> list[JobId]:
        """All jobs, in the order in which they came."""
        return list(self._jobs)

    def submit_of(self, job_id: JobId) -> Submit:
        """A job that waits."""
        return self._jobs[job_id].submit

    def is_resumed(self, job_id: JobId) -> bool:
        """Whether another scheduler had the job before."""
        return self._jobs[job_id].is_resumed

    def add(self, submit: Submit, now_s: float, *, is_resumed: bool = False) -> None:
        """A job begins to wait."""
        self._jobs[submit.job_id] = _Waiting(submit, now_s, is_resumed)
        if submit.deadline_s is not None:
            if len(self._deadlines) > LEAST_SWEEP + 2 * len(self._jobs):
                self._deadlines = [entry for entry in self._deadlines if self._is_due_at(*entry)]
                heapify(self._deadlines)
            heappush(self._deadlines, (submit.deadline_s, submit.job_id))

    def take(self, job_id: JobId) -> Submit:
        """A job has found a group. Its age goes with it."""
        submit, arrived_s, _ = self._jobs.pop(job_id)
        return submit._replace(arrived_s=arrived_s)

    def end(self, job_id: JobId, reason: EndReason, now_s: float) -> End:
        """A job ends without having run."""
        waited_s = now_s - self._jobs.pop(job_id).arrived_s
        return End(job_id, reason, 0, waited_s, 0.0, 0.0)

    def expire(self, now_s: float) -> list[End]:
        """The jobs whose deadlines have passed end."""
        ends: list[End] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            due_s, job_id = heappop(self._deadlines)
            if self._is_due_at(due_s, job_id):
                ends.append(self.end(job_id, EndReason.DEADLINE, now_s))
        return ends

    def next_s(self) -> float | None:
        """When `expire` should be called next."""
        return self._deadlines[0][0] if self._deadlines else None

    def _is_due_at(self, due_s: float, job_id: JobId) -> bool:
        waiting = self._jobs.get(job_id)
        return waiting is not None and waiting.submit.deadline_s == due_s
