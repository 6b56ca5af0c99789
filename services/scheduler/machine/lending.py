"""Lending: a job that waits too long for a token gets an iteration at the head of the order, then returns to its place.

A promotion forgets a job's past and so changes the order for good; under load every waiting job is promoted, and the
order is gone. A loan leaves the order as it is. The iteration is charged as always.

- Silence: a started job that has made no token for `silence_limit_s` is lent one iteration, longest silence first. If
its KV is not on the device, it is lent one at most every FAR_PERIOD_S, for FAR_TOKENS tokens, because bringing its KV
back costs more than the tokens.
- First tokens: a job that has waited for `first_token_limit_s` and has not started is lent its prefill. There is one
such loan at a time, to the job that came last, because jobs that came long before it are late in any case. All
of them together take at most `first_token_share` of the server's time, up to FIRST_TOKEN_CREDIT_S saved up: a prefill
ahead of its turn delays all jobs before it. No prefill is lent when more jobs have started than loans can keep from
falling silent.

At most a quarter of a batch is lent. A step is the end of an iteration.
"""

from collections import deque
from math import inf

from services.domain.cost import CostProfile
from services.domain.protocol import Rank
from services.scheduler.job import CLOSING, ENDED, RESIDENT, Job
from services.scheduler.machine.ranking import Ranking
from services.scheduler.machine.timers import Timers
from services.scheduler.scheduler_config import SchedulerConfig

LENT_LEVEL = 0
LENT_SHARE = 0.25
"""The greatest share of a batch that is lent."""
FAR_PERIOD_S = 4.0
FAR_TOKENS = 16
FIRST_TOKEN_CREDIT_S = 2.0
MOST_POOL_SHARE = 0.8
"""Share of the device pool that started jobs may hold for a prefill to be lent."""
KEPT_SHARE = 0.35
"""Share of the loans for silence that are counted on when prefills are lent; the others make up for delays."""
STEP_WEIGHT = 0.05
LOOKS_PER_STEP = 64
"""Most timers, and most late jobs, examined per step."""
LEAST_SWEEP = 1024


class Lending:
    """Decides which jobs are lent an iteration, and takes it back."""

    def __init__(self, config: SchedulerConfig, ranking: Ranking, *, enabled: bool) -> None:
        self._enabled = enabled
        self._silence_limit_s = inf if config.silence_limit_s is None else config.silence_limit_s
        self._first_token_limit_s = inf if config.first_token_limit_s is None else config.first_token_limit_s
        self._first_token_share = config.first_token_share
        self._max_batch = config.max_batch
        self._most_lent = max(1, int(config.max_batch * LENT_SHARE))
        self._ranking = ranking
        self._profile: CostProfile | None = None
        self._first_timers = Timers()
        self._silence_timers = Timers()
        self._late: list[Job] = []
        """Jobs past the limit of the first token, the last to arrive at the end; some have started or ended."""
        self._sweep_at = LEAST_SWEEP
        self._silent: deque[Job] = deque()
        """Jobs past the limit of silence, longest first; some are not silent any more, or have ended."""
        self._returning: list[Job] = []
        self._first_loan: Job | None = None
        self._credit_s = 0.0
        self._stepped_s: float | None = None
        self._step_s = 0.0
        """Average seconds between steps."""
        self._pool_tokens = 0
        self.held_tokens = 0
        """Capacity of the resident jobs that have been planned."""
        self.lent_jobs = 0
        self.started_jobs = 0

    def calibrate(self, profile: CostProfile, device_pool_tokens: int) -> None:
        """A worker joined: take its cost model and the size of its device pool."""
        self._profile = profile
        self._pool_tokens = device_pool_tokens
        self.held_tokens = 0

    # --- what happens to jobs ----------------------------------------------------------------------------------------

    def arrived(self, job: Job) -> None:
        if self._enabled and self._first_token_limit_s < inf:
            self._first_timers.push(job.arrived_s + self._first_token_limit_s, job)

    def took_in(self, job: Job, now_s: float) -> None:
        """The job came from another group."""
        if job.first_token_s is None:
            self.arrived(job)
        else:
            self.sampled_first(job, now_s if job.last_token_s is None else job.last_token_s)

    def held(self, job: Job, capacity_tokens: int) -> None:
        """The device holds room for this many tokens of the job from now on."""
        if job.first_planned_s is not None:
            self.held_tokens += capacity_tokens - job.held_tokens
            job.held_tokens = capacity_tokens

    def sampled_first(self, job: Job, now_s: float) -> None:
        """The job made its first token."""
        self.started_jobs += 1
        if self._enabled and self._silence_limit_s < inf:
            self._silence_timers.push(now_s + self._silence_limit_s, job)

    def ended(self, job: Job) -> None:
        self.held(job, 0)
        if job.first_token_s is not None:
            self.started_jobs -= 1
        if job.lent_to_token is not None:
            self._forget(job)

    def planned(self, job: Job, to_token: int) -> None:
        """A plan was made that computes the job's positions below `to_token`: the loan ends with its last iteration."""
        if job.lent_to_token is not None and to_token >= job.lent_to_token:
            self._forget(job)
            self._returning.append(job)

    def take_back(self) -> None:
        """The jobs whose loans were planned in the last turn return to their own places. Called once per turn, before
        the order is sent.
        """
        for job in self._returning:
            if job.state not in (CLOSING, ENDED) and job.lent_to_token is None:
                self._ranking.take_back(job)
        self._returning.clear()

    def state_key(self) -> tuple[object, ...]:
        """All that later loans depend on besides the jobs."""
        lists = (self._late, self._silent, self._returning, [] if self._first_loan is None else [self._first_loan])
        ids = tuple(tuple(job.job_id for job in jobs) for jobs in lists)
        return (*ids, self._credit_s, self._stepped_s, self._step_s)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def step(self, now_s: float) -> None:
        """An iteration ended: lend what is due."""
        if not self._enabled:
            return
        self._pass_time(now_s)
        self._look_at_timers(now_s)
        looks = LOOKS_PER_STEP
        while self._silent and self.lent_jobs < self._most_lent and looks:
            looks -= 1
            self._lend_for_silence(self._silent.popleft(), now_s)
        if self.lent_jobs < self._most_lent and self._first_loan is None and self._credit_s > 0.0 and self._room():
            self._lend_first_token(now_s)

    def _pass_time(self, now_s: float) -> None:
        if self._stepped_s is not None:
            elapsed_s = now_s - self._stepped_s
            self._step_s += STEP_WEIGHT * (min(elapsed_s, self._silence_limit_s) - self._step_s)
            self._credit_s = min(self._credit_s + self._first_token_share * elapsed_s, FIRST_TOKEN_CREDIT_S)
        self._stepped_s = now_s

    def _look_at_timers(self, now_s: float) -> None:
        for _ in range(LOOKS_PER_STEP):
            if (job := self._silence_timers.pop_due(now_s)) is None:
                break
            if job.state in (CLOSING, ENDED):
                continue
            due_s = self._silent_at_s(job, now_s)
            if due_s > now_s:
                self._silence_timers.push(due_s, job)
            else:
                self._silent.append(job)
        for _ in range(LOOKS_PER_STEP):
            if (job := self._first_timers.pop_due(now_s)) is None:
                break
            if self._may_start(job):
                self._late.append(job)
        if len(self._late) > self._sweep_at:
            self._late = [job for job in self._late if self._may_start(job)]
            self._sweep_at = max(LEAST_SWEEP, 2 * len(self._late))

    def _silent_at_s(self, job: Job, now_s: float) -> float:
        """When a loan is due to the job, if it makes no token before."""
        if job.in_flight or job.lent_to_token is not None or job.last_token_s is None:
            return now_s + self._silence_limit_s
        due_s = job.last_token_s + self._silence_limit_s
        return due_s if job.state is RESIDENT else max(due_s, job.next_far_loan_s)

    def _lend_for_silence(self, job: Job, now_s: float) -> None:
        if job.state in (CLOSING, ENDED):
            return
        if self._silent_at_s(job, now_s) <= now_s:
            far = job.state is not RESIDENT
            if far:
                job.next_far_loan_s = now_s + FAR_PERIOD_S
            self._lend(job, job.expected_tokens + (FAR_TOKENS - 1 if far else 0), now_s)
        self._silence_timers.push(max(now_s, self._silent_at_s(job, now_s)), job)

    def _lend_first_token(self, now_s: float) -> None:
        for _ in range(LOOKS_PER_STEP):
            if not self._late:
                return
            job = self._late[-1]
            if not self._may_start(job):
                self._late.pop()
            elif self.held_tokens + job.known_tokens > MOST_POOL_SHARE * self._pool_tokens:
                return
            else:
                self._late.pop()
                self._credit_s -= self._prefill_s(job)
                self._first_loan = job
                self._lend(job, job.expected_tokens, now_s)
                return

    def _may_start(self, job: Job) -> bool:
        return job.state not in (CLOSING, ENDED) and job.first_planned_s is None

    def _room(self) -> bool:
        """Whether loans can keep another started job from falling silent."""
        if self._silence_limit_s == inf:
            return True
        loans = self._silence_limit_s / self._step_s * self._most_lent if self._step_s > 0.0 else 0.0
        return self.started_jobs < self._max_batch + KEPT_SHARE * loans

    def _prefill_s(self, job: Job) -> float:
        assert self._profile is not None, "calibrate must be called first"
        return self._profile.prefill_beside_s(job.known_tokens, self._max_batch)

    def _lend(self, job: Job, to_token: int, now_s: float) -> None:
        most = job.prompt_tokens + job.max_tokens - 1
        job.lent_to_token = min(to_token, most)
        self.lent_jobs += 1
        self._ranking.lend(job, Rank(LENT_LEVEL, now_s, job.arrival_number))

    def _forget(self, job: Job) -> None:
        job.lent_to_token = None
        self.lent_jobs -= 1
        if self._first_loan is job:
            self._first_loan = None
