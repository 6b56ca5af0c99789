"""Promotion of jobs that have waited for the starvation limit (PAPER 2, step 3): longest wait first, a bounded number
per step.

A step is the end of an iteration; while no plan is under way there is one extra step. The bound keeps a whole backlog
from being promoted at once, which would merge the queues into one (PAPER 7). A job waits while no plan under way names
it; its wait begins when it arrives, when its last iteration ends, and when it is promoted. Each job has one timer. It
fires when the wait would be long enough if the job had not run since, and is set again if the job did run.
"""

from services.domain.protocol import Rank
from services.scheduler.job import CLOSING, ENDED, Job
from services.scheduler.machine.timers import Timers
from services.scheduler.policies.scheduling_policy import SchedulingPolicy

LOOKS_PER_STEP = 64
"""Most timers examined per step: when the timers of a burst come due together, the rest wait for the next step."""


class Promotion:
    """Decides which jobs to promote, and when."""

    def __init__(self, limit_s: float | None, per_step: int, policy: SchedulingPolicy) -> None:
        self._limit_s = limit_s
        self._per_step = per_step
        self._policy = policy
        self._timers = Timers()

    def watch(self, job: Job) -> None:
        """Start the job's timer, unless it is already running or the job is in the highest level."""
        if self._limit_s is not None and not job.starvation_timer and job.place.level > 0 and self._policy.quanta_s:
            job.starvation_timer = True
            self._timers.push(job.waiting_since_s + self._limit_s, job)

    def next_s(self) -> float | None:
        """When the earliest timer fires; None without timers."""
        return self._timers.next_s()

    def step(self, now_s: float) -> list[tuple[Job, Rank]]:
        """The jobs to promote now, at most `per_step`, with their new places."""
        promoted: list[tuple[Job, Rank]] = []
        if self._limit_s is None:
            return promoted
        for _ in range(LOOKS_PER_STEP):
            if len(promoted) == self._per_step or (job := self._timers.pop_due(now_s)) is None:
                break
            job.starvation_timer = False
            if job.state in (CLOSING, ENDED):
                continue
            due_s = (now_s if job.in_flight else job.waiting_since_s) + self._limit_s
            if due_s > now_s:
                job.starvation_timer = True
                self._timers.push(due_s, job)
            elif (rank := self._policy.promote(job)) is not None:
                job.waiting_since_s = now_s
                promoted.append((job, rank))
        return promoted
