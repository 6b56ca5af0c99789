"""When each started job's next token is due for it to be within the limit on later tokens, and who is behind.

The limit is on the average of a job's later tokens, so the n-th of them is due n limits after the first token. A job
that has run at full speed is ahead of that by many tokens and can pause; that is what makes room for others.
"""

from collections import deque

from services.scheduler.job import CLOSING, ENDED, RESIDENT, Job
from services.scheduler.machine.timers import Timers

TOKENS_LENT = 16
"""To a job that is just due. Fewer mean more changes of the order, more mean longer pauses."""
MOST_TOKENS_BEHIND = 16
"""A job that is further behind is given up: it would take much from others to bring it back."""
LOST_LOOK_S = 1.0
"""How often a job is looked at that can't be helped now: its KV is away, or it is given up."""


class TokenDeadlines:
    """Jobs by the time at which their next token is due. `limit_s`: seconds for each later token."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timers = Timers()
        self._behind: deque[Job] = deque()
        """Those that are due, the first to be so first; some have run again, or ended."""

    @property
    def has_waiting(self) -> bool:
        """Whether jobs are due that were lent nothing yet."""
        return bool(self._behind)

    def state_key(self) -> tuple[object, ...]:
        """All that later answers depend on besides the jobs."""
        return tuple(job.job_id for job in self._behind)

    def sampled_first(self, job: Job, now_s: float) -> None:
        """The job has made its first token, or came from another group after it."""
        self._timers.push(max(now_s, self._due_s(job)), job)

    def look(self, now_s: float, most_looks: int) -> None:
        """Find those that are due."""
        for _ in range(most_looks):
            if (job := self._timers.pop_due(now_s)) is None:
                return
            if job.state in (CLOSING, ENDED):
                continue
            if (due_s := self._due_s(job)) > now_s:
                self._timers.push(due_s, job)
            elif job.in_flight or job.lent_to_token is not None:
                self._timers.push(now_s + self._limit_s, job)
            elif job.state is not RESIDENT or now_s - due_s > MOST_TOKENS_BEHIND * self._limit_s:
                self._timers.push(now_s + LOST_LOOK_S, job)
            else:
                self._behind.append(job)

    def take(self, now_s: float, gain_s: float) -> tuple[Job, int] | None:
        """The next job that is to be lent tokens, and how many; None: there is none. `gain_s` is how much a job makes
        up for with each token.
        """
        while self._behind:
            job = self._behind.popleft()
            if job.state in (CLOSING, ENDED):
                continue
            self._timers.push(now_s + self._limit_s, job)
            late_s = now_s - self._due_s(job)
            if late_s >= 0.0 and not job.in_flight and job.lent_to_token is None and job.state is RESIDENT:
                return job, TOKENS_LENT + min(MOST_TOKENS_BEHIND * TOKENS_LENT, int(late_s / gain_s))
        return None

    def _due_s(self, job: Job) -> float:
        assert job.first_token_s is not None, "a job has deadlines from its first token on"
        return job.first_token_s + self._limit_s * max(1, job.output_tokens)
