"""Lending: a job that waits too long for a token gets iterations at the head of the order, then returns to its place.

A promotion forgets a job's past and so changes the order for good; under load every waiting job is promoted, and the
order is gone. A loan leaves the order as it is. The iteration is charged as always.

- Silence: a started job that has made no token for nearly `silence_limit_s` is lent one iteration, so that its token
comes at about the limit; longest silence first. If its KV is not on the device, it is lent one at most every
FAR_PERIOD_S, for FAR_TOKENS tokens, because bringing its KV back costs more than the tokens.
- First tokens: a job that has waited for `first_token_limit_s` and has not started is lent its prefill, the one that
came last first, because jobs that came long before it are late in any case. No prefill is lent when more jobs have
started than loans can keep within the limits, or while silent jobs wait for their loans.
- Later tokens: a job that is about to make them slower than one in `per_token_limit_s` on average is lent a few
(token_deadlines.py), as long as its KV is on the device.

Loans for first and later tokens are paid from one account (loan_account.py), those for silence are not. Of a batch no
more is lent than LATER_ROWS for later tokens, FIRST_ROWS for first ones, and SILENCE_ROWS for silence, or up to
MOST_SILENCE_ROWS if many wait for that. A step is the end of an iteration.
"""

from collections import deque
from math import inf

from services.domain.cost import CostProfile
from services.domain.protocol import Rank
from services.scheduler.job import CLOSING, ENDED, RESIDENT, Job, LoanKind
from services.scheduler.machine.loan_account import FAR_PERIOD_S, FAR_TOKENS, KEPT_SHARE, LoanAccount
from services.scheduler.machine.ranking import Ranking
from services.scheduler.machine.timers import Timers
from services.scheduler.machine.token_deadlines import TokenDeadlines
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.scheduling_policy import WorkShape
from services.scheduler.scheduler_config import SchedulerConfig

LENT_LEVEL = 0
FIRST_ROWS = 1 / 32
"""Most of a batch that is lent for first tokens, but at least one job."""
MOST_POOL_SHARE = 0.8
"""Share of the device pool that started jobs may hold for a prefill to be lent."""
LOOKS_PER_STEP = 64
"""Most timers, and most late jobs, examined per step, or as many as a batch has rows."""
LEAST_SWEEP = 1024


class Lending:
    """Decides which jobs are lent an iteration, and takes it back."""

    def __init__(self, config: SchedulerConfig, batch: BatchLimit, ranking: Ranking, *, enabled: bool) -> None:
        self._enabled = enabled
        self._first_token_limit_s = inf if config.first_token_limit_s is None else config.first_token_limit_s
        self._batch = batch
        self._lent = dict.fromkeys(LoanKind, 0)
        self._account = LoanAccount(config, batch)
        self._ranking = ranking
        limit_s = config.per_token_limit_s
        self._deadlines = TokenDeadlines(KEPT_SHARE * limit_s) if enabled and limit_s is not None else None
        self._first_timers = Timers()
        self._silence_timers = Timers()
        self._late: list[Job] = []
        """Jobs past the limit of the first token, the last to arrive at the end; some have started or ended."""
        self._sweep_at = LEAST_SWEEP
        self.silent: deque[tuple[Job, bool]] = deque()
        """Jobs past the limit of silence, longest first, and whether their KV was away; some have made a token
        since, or ended.
        """
        self.far_silent_jobs = 0
        """Those whose KV was away."""
        self._returning: list[Job] = []
        self._pool_tokens = 0
        self.held_tokens = 0
        """Capacity of the resident jobs that have been planned."""
        self.started_jobs = 0

    @property
    def lent_jobs(self) -> int:
        """Jobs that are lent something."""
        return sum(self._lent.values())

    def calibrate(self, profile: CostProfile, device_pool_tokens: int) -> None:
        """A worker joined: take its cost model and the size of its device pool."""
        self._account.calibrate(profile)
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
        if self._enabled and (lent_after_s := self._account.lent_after_s) < inf:
            self._silence_timers.push(now_s + lent_after_s, job)
        if self._deadlines is not None:
            self._deadlines.sampled_first(job, now_s)

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
        ids = tuple(tuple(job.job_id for job in jobs) for jobs in (self._late, self._returning))
        silent = tuple((job.job_id, far) for job, far in self.silent)
        behind = () if self._deadlines is None else self._deadlines.state_key()
        return (*ids, silent, *self._account.state_key(), behind)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def step(self, now_s: float, iterations: int, work: WorkShape) -> None:
        """So many iterations ended: lend what is due. `work` is that of the jobs served lately."""
        if not self._enabled:
            return
        self._account.pass_time(now_s, iterations, len(self._ranking), work)
        self._look_at_timers(now_s)
        self._lend_to_silent(now_s)
        if self._deadlines is not None and self._account.keeps_later_tokens:
            self._deadlines.look(now_s, self._looks)
            self._lend_later_tokens(self._deadlines, now_s)
            if self._deadlines.has_waiting:
                return
        if not self.silent:
            self._lend_first_tokens(now_s)

    @property
    def _most_first(self) -> int:
        return max(1, int(self._batch.jobs * FIRST_ROWS))

    @property
    def _looks(self) -> int:
        return max(LOOKS_PER_STEP, self._batch.jobs)

    def _look_at_timers(self, now_s: float) -> None:
        for _ in range(self._looks):
            if (job := self._silence_timers.pop_due(now_s)) is None:
                break
            if job.state in (CLOSING, ENDED):
                continue
            due_s = self._silent_at_s(job, now_s)
            if due_s > now_s:
                self._silence_timers.push(due_s, job)
            else:
                far = job.state is not RESIDENT
                self.far_silent_jobs += far
                self.silent.append((job, far))
        for _ in range(self._looks):
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
            return now_s + self._account.lent_after_s
        due_s = job.last_token_s + self._account.lent_after_s
        return due_s if job.state is RESIDENT else max(due_s, job.next_far_loan_s)

    def _lend_to_silent(self, now_s: float) -> None:
        most = self._account.most_silent(len(self.silent) - self.far_silent_jobs, self.far_silent_jobs)
        for _ in range(min(self._looks, len(self.silent))):
            if self._lent[LoanKind.SILENCE] >= most:
                return
            job, far = self.silent.popleft()
            self.far_silent_jobs -= far
            self._lend_for_silence(job, now_s)

    def _lend_for_silence(self, job: Job, now_s: float) -> None:
        if job.state in (CLOSING, ENDED):
            return
        if self._silent_at_s(job, now_s) <= now_s:
            far = job.state is not RESIDENT
            if far:
                job.next_far_loan_s = now_s + FAR_PERIOD_S
            self.lend(LoanKind.SILENCE, job, FAR_TOKENS if far else 1, now_s)
        self._silence_timers.push(max(now_s, self._silent_at_s(job, now_s)), job)

    def _lend_later_tokens(self, deadlines: TokenDeadlines, now_s: float) -> None:
        while self._lent[LoanKind.LATER_TOKENS] < self._account.most_later and self._account.has_credit:
            if (due := deadlines.take(now_s, self._account.gain_s)) is None:
                return
            job, tokens = due
            self._account.pay_tokens(tokens)
            self.lend(LoanKind.LATER_TOKENS, job, tokens, now_s)

    def _lend_first_tokens(self, now_s: float) -> None:
        for _ in range(self._looks):
            if not self._late or self._lent[LoanKind.FIRST_TOKEN] >= self._most_first or not self._account.has_credit:
                return
            job = self._late[-1]
            if self._may_start(job):
                full = self.held_tokens + job.known_tokens > MOST_POOL_SHARE * self._pool_tokens
                if full or not self._account.has_room(self.started_jobs):
                    return
                self._account.pay_prefill(job)
                self.lend(LoanKind.FIRST_TOKEN, job, 1, now_s)
            self._late.pop()

    def _may_start(self, job: Job) -> bool:
        return job.state not in (CLOSING, ENDED) and job.first_planned_s is None

    def lend(self, kind: LoanKind, job: Job, tokens: int, now_s: float) -> None:
        """Lend the job all iterations up to the one that makes this many tokens."""
        most = job.prompt_tokens + job.max_tokens - 1
        job.lent_to_token = min(job.expected_tokens + tokens - 1, most)
        job.loan_kind = kind
        self._lent[kind] += 1
        self._ranking.lend(job, Rank(LENT_LEVEL, now_s, job.arrival_number))

    def _forget(self, job: Job) -> None:
        job.lent_to_token = None
        self._lent[job.loan_kind] -= 1
