"""Jobs on their way off the device: ended jobs, and jobs whose blocks the KV manager asked for (PROTOCOL rules 3 and
4).

Both wait until every plan that names the job has a result. If an ended job were released earlier, its block could
belong to another job when the last plan writes its extra token into it. If consent were given earlier, the last plan
would find no table. Being in a plan delays consent but is no reason to refuse it: two jobs that both need to grow would
refuse each other forever.
"""

from services.domain.ids import JobId
from services.domain.protocol import Ack, ReclaimRequest, Refuse, Release, SchedulerToKv
from services.scheduler.job import CLOSING, DRAINING, ENDED, OUT, Job
from services.scheduler.machine.iterations import Iterations
from services.scheduler.machine.ranking import Ranking
from services.scheduler.machine.residency import Residency


class Releases:
    """Ended and draining jobs, and the requests of the current turn. Answers are messages to the KV manager."""

    def __init__(self, jobs: dict[JobId, Job], ranking: Ranking, iterations: Iterations, residency: Residency) -> None:
        self.closing: list[Job] = []
        self.draining: list[Job] = []
        self._requests: list[ReclaimRequest] = []
        self._jobs = jobs
        self._ranking = ranking
        self._iterations = iterations
        self._residency = residency

    def ended(self, job: Job) -> None:
        """Take a job that is now CLOSING."""
        self.closing.append(job)

    def ask(self, request: ReclaimRequest) -> None:
        """Take a request, to be answered in this turn once its order is known."""
        self._requests.append(request)

    @property
    def has_requests(self) -> bool:
        """Whether `answer` has anything to do."""
        return bool(self._requests)

    def release(self, now_s: float) -> list[SchedulerToKv]:
        """Rule 3: release and forget the ended jobs that no unfinished plan names."""
        free = [job for job in self.closing if not job.in_flight]
        self.closing = [job for job in self.closing if job.in_flight]
        for job in free:
            self._forget(job, now_s)
        return [Release(job.job_id) for job in free]

    def answer(self, now_s: float) -> list[SchedulerToKv]:
        """Rule 4: refuse if the job now outranks the beneficiary or the beneficiary is gone (the KV manager has already
        been sent either change); otherwise drain.

        For a job that ended, Release is the answer. Raises ProtocolError for a job that is not resident.
        """
        requests, self._requests = self._requests, []
        answers: list[SchedulerToKv] = []
        for request in requests:
            job = self._jobs.get(request.job_id)
            if job is None or job.state is CLOSING:
                continue
            if request.beneficiary_id is not None and self._outranks(job, request.beneficiary_id):
                answers.append(Refuse(job.job_id))
                continue
            job.move(DRAINING, now_s, f"reclaimed for {request.beneficiary_id}")
            self._ranking.set_ready(job, False)
            self.draining.append(job)
        return answers

    def acknowledge(self, now_s: float) -> list[SchedulerToKv]:
        """Rule 4: consent to giving up the draining jobs that no unfinished plan names."""
        draining = [job for job in self.draining if job.state is DRAINING]
        self.draining = [job for job in draining if job.in_flight]
        free = [job for job in draining if not job.in_flight]
        for job in free:
            job.move(OUT, now_s, "consented")
            self._iterations.preempted(job)
            self._residency.given_up(job)
        return [Ack(job.job_id) for job in free]

    def void(self, now_s: float) -> None:
        """Plans and tables are void: forget everything without sending anything."""
        self._requests.clear()
        self.draining.clear()
        for job in self.closing:
            self._forget(job, now_s)
        self.closing.clear()

    def _outranks(self, job: Job, other_id: JobId) -> bool:
        beneficiary = self._jobs.get(other_id)
        if beneficiary is None:
            return True
        return beneficiary.state is not CLOSING and job.rank < beneficiary.rank

    def _forget(self, job: Job, now_s: float) -> None:
        job.move(ENDED, now_s, "released")
        del self._jobs[job.job_id]
