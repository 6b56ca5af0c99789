"""What may be lent so that jobs stay within the limits on first and later tokens: an account of the server's time.

A prefill ahead of its turn, and tokens for jobs that would fall behind, delay whoever is before them in the order. So
loans are paid in seconds of the server's time from an account that grows by a share of the time that passes.

In two cases nearly all of the time may be lent. With little more jobs than fit a batch (FEW_JOBS) loans delay almost
nobody, where it is rows of the batch that are short. And with all jobs that can share the server and still be within
the limit on later tokens, if that costs no mean completion time: a single server that its jobs share evenly makes them
wait 2 / (1 + C2) times as long as first come, first served does, where C2 is the squared coefficient of variation of
their work (Pollaczek and Khinchine for the one; M/G/1 processor sharing, which does not depend on it, for the other).
That is no longer from C2 = 1 on. Beyond that many jobs not all can be within the limits, and whoever is lent something
takes it from somebody else: then the share holds. So it does where nearly all of the work is prefills: these are not
shared, and loans would only change their order, to that of the last to come.

Where the spread is GREAT_SPREAD or more, no later tokens are lent at all: a few jobs are most of the work there, nearly
all others are within the limits without loans, and what the few were lent would come from these.
"""

from math import ceil, inf

from services.domain.cost import CostProfile
from services.scheduler.job import Job
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.scheduling_policy import UNKNOWN_WORK, WorkShape, way_between
from services.scheduler.scheduler_config import SchedulerConfig

CREDIT_S = 2.0
"""Most that is saved up."""
FREE_SPREAD, SAFE_SPREAD = 1.0, 1.25
"""Squared coefficients of variation of the work: from the first on sharing begins to be free, from the second on it
is for any number of jobs.
"""
GREAT_SPREAD = 8.5
FEW_JOBS = 1.5
"""Times a batch."""
FEW_PREFILLS, MANY_PREFILLS = 0.5, 0.85
"""Shares of prefills in the work: up to the first lending is free as told, from the second on it never is."""
KEPT_SHARE = 0.95
"""Share of the limit on later tokens in which they are to come."""
SILENCE_ROWS, MOST_SILENCE_ROWS, LATER_ROWS = 1 / 4, 1 / 2, 3 / 4
"""Most of a batch that is lent to silent jobs, but at least one job; to these if many wait; and to jobs that would fall
behind.
"""
FAR_PERIOD_S = 4.0
FAR_TOKENS = 16
"""A silent job whose KV is not on the device is lent so many iterations, at most that often."""
SILENCE_DELAY = 1 / 6
"""Silent jobs that wait for a loan are to have it within this share of the time after which it was due."""
LOAN_ITERATIONS = 3.0
"""From a job's being silent for too long to its token: the iteration under way, the one after it, which has been
planned, and its own.
"""
LEAST_SILENCE = 0.5
"""Times the limit: no job is lent an iteration for a shorter silence, however long iterations take."""
STEP_WEIGHT = 0.05
SILENCE_SHARE = 0.35
"""Share of the loans for silence that are counted on when prefills are lent; the others make up for delays."""


class LoanAccount:
    """The account, and how many started jobs loans can serve. A step is the end of one iteration, or of several whose
    results came together.
    """

    def __init__(self, config: SchedulerConfig, batch: BatchLimit) -> None:
        self._share = config.first_token_share
        self._batch = batch
        self._silence_limit_s = inf if config.silence_limit_s is None else config.silence_limit_s
        self._kept_s = inf if config.per_token_limit_s is None else KEPT_SHARE * config.per_token_limit_s
        self._profile: CostProfile | None = None
        self._work = UNKNOWN_WORK
        self._credit_s = 0.0
        self._stepped_s: float | None = None
        self._idle = False
        """Whether no job was left at the end of the last step."""
        self._step_s = self._square_step_s2 = 0.0
        """Average seconds from the end of an iteration to that of the next, where jobs were left, and the average of
        their squares.
        """

    def calibrate(self, profile: CostProfile) -> None:
        """Take the seconds of prefills from the profile."""
        self._profile = profile

    def state_key(self) -> tuple[object, ...]:
        """All that later loans depend on."""
        return (self._credit_s, self._stepped_s, self._idle, self._step_s, self._square_step_s2)

    def pass_time(self, now_s: float, iterations: int, living_jobs: int, work: WorkShape) -> None:
        """A step of so many iterations: the account grows by a share of the time since the last one."""
        self._work = work
        if self._stepped_s is not None:
            elapsed_s = now_s - self._stepped_s
            if not self._idle:
                self._average(min(elapsed_s, self._silence_limit_s) / iterations, min(1.0, STEP_WEIGHT * iterations))
            share = 1.0 if living_jobs <= self._free_jobs() else self._share
            self._credit_s = min(self._credit_s + share * elapsed_s, CREDIT_S)
        self._stepped_s, self._idle = now_s, not living_jobs

    def _average(self, took_s: float, weight: float) -> None:
        """Iterations took so long each."""
        self._step_s += weight * (took_s - self._step_s)
        self._square_step_s2 += weight * (took_s * took_s - self._square_step_s2)

    @property
    def has_credit(self) -> bool:
        """Whether something may be lent."""
        return self._credit_s > 0.0

    @property
    def keeps_later_tokens(self) -> bool:
        """Whether iterations are short enough for jobs to take turns within the limit on later tokens, and the spread
        of their work is not great.
        """
        return self._turns > 1.0 and self._work.spread < GREAT_SPREAD

    @property
    def gain_s(self) -> float:
        """How much a job that is behind makes up for with each token. Positive where later tokens can be kept."""
        return self._kept_s - self._step_s

    def pay_prefill(self, job: Job) -> None:
        """The job is lent its prefill."""
        assert self._profile is not None, "calibrate must be called first"
        self._credit_s -= self._profile.prefill_beside_s(job.known_tokens, self._batch.jobs)

    def pay_tokens(self, tokens: int) -> None:
        """A job is lent a row of so many iterations."""
        self._credit_s -= tokens * self._step_s / self._batch.jobs

    @property
    def lent_after_s(self) -> float:
        """The silence at which a job is lent an iteration, for its token to come at the limit. It falls into an
        iteration that takes the mean square over the mean: more of the time passes in the long ones, with prefills.
        """
        limit_s = self._silence_limit_s
        met_s = self._square_step_s2 / self._step_s if self._step_s > 0.0 else 0.0
        return max(limit_s - LOAN_ITERATIONS * met_s, LEAST_SILENCE * limit_s)

    def most_silent(self, near_jobs: int, far_jobs: int) -> int:
        """How many jobs are lent an iteration for silence at a time, where so many wait for that, and so many for
        FAR_TOKENS of them.
        """
        usual, most = (max(1, int(self._batch.jobs * rows)) for rows in (SILENCE_ROWS, MOST_SILENCE_ROWS))
        waiting = near_jobs / self._silence_limit_s + far_jobs * FAR_TOKENS / FAR_PERIOD_S
        return min(max(usual, ceil(waiting * self._step_s / SILENCE_DELAY)), most)

    @property
    def most_later(self) -> int:
        """How many jobs are lent later tokens at a time."""
        return int(self._batch.jobs * LATER_ROWS)

    def has_room(self, started_jobs: int) -> bool:
        """Whether loans can keep one more started job within the limits, or at least from falling silent."""
        batch = self._batch.jobs
        if self.keeps_later_tokens:
            rows = self.most_later
            return started_jobs < batch - rows + self._turns * rows
        if self._silence_limit_s == inf:
            return True
        loans = self._silence_limit_s / self._step_s * self.most_silent(0, 0) if self._step_s > 0.0 else 0.0
        return started_jobs < batch + SILENCE_SHARE * loans

    @property
    def _turns(self) -> float:
        """How many jobs can take turns at a row of the batch; 0 where it is not known, or not limited."""
        return self._kept_s / self._step_s if self._step_s > 0.0 and self._kept_s < inf else 0.0

    def _free_jobs(self) -> float:
        """Up to so many living jobs sharing the server costs little or nothing."""
        if not self.keeps_later_tokens:
            return 0.0
        most = self._turns / KEPT_SHARE
        few = min(FEW_JOBS, most)
        jobs = few + (most - few) * way_between(self._work.spread, FREE_SPREAD, SAFE_SPREAD)
        return self._batch.jobs * jobs * way_between(self._work.prefill_share, MANY_PREFILLS, FEW_PREFILLS)
