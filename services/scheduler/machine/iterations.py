"""Plans: making the next one, and taking the result of the oldest (PROTOCOL rules 1 and 2).

Several plans are under way at once, so that the worker never waits for the scheduler. Plan n + 1 is made before the
tokens of plan n are known: a job that samples in plan n is planned again one position further, never past max_tokens.
If it turns out to have ended in n, its part of n + 1 is discarded. A job whose prefill may be cut in plan n is not
planned again before the result of n, because its position is not known until then. The same holds for the first entry
of a job with a guide, which the worker passes over while it compiles the guide. The next plan gives others its place.

With several pipeline stages, as many batches run at a time, each on a different stage. A job is in only one of them:
the first stage takes the best jobs that are not in flight (PAPER 4), or a job on the last stage, whose token will
arrive in time. Only when all jobs are in flight is one further plan made of them, so that no stage waits for the
scheduler.

A preemption means that a job left the running batch before its end while another ran in its place. A job that sits out
an iteration because it lacks capacity, or because all its tokens are under way, is not thereby preempted; it is if the
KV manager takes its blocks in the meantime.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from services.domain.cost import CostProfile
from services.domain.errors import ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import JobId, PlanNumber
from services.domain.protocol import IterationResult, PlanEntry, Rank, SampledToken
from services.domain.records import records
from services.scheduler.job import CLOSING, RESIDENT, Job
from services.scheduler.machine.batching import build_batch
from services.scheduler.machine.charging import Charging
from services.scheduler.machine.flight import Flight
from services.scheduler.machine.lending import Lending
from services.scheduler.machine.pace import Pace
from services.scheduler.machine.plan_lead import PlanLead
from services.scheduler.machine.promotion import Promotion
from services.scheduler.machine.ranking import Ranking
from services.scheduler.machine.scheduler_counters import SchedulerCounters
from services.scheduler.machine.scheduler_events import Emit
from services.scheduler.policies.backlog import Backlog
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.scheduling_policy import SchedulingPolicy
from services.scheduler.scheduler_config import SchedulerConfig


@dataclass(slots=True)
class Outcome:
    """The outcome of an iteration: tokens to emit, and jobs that ended with their token."""

    emits: list[Emit] = field(default_factory=list)
    ended: list[tuple[Job, EndReason]] = field(default_factory=list)


class Iterations:
    """The plans under way, oldest first."""

    def __init__(
        self,
        config: SchedulerConfig,
        batch: BatchLimit,
        policy: SchedulingPolicy,
        promotion: Promotion,
        lending: Lending,
        ranking: Ranking,
        counters: SchedulerCounters,
    ) -> None:
        self.unfinished: deque[Flight] = deque()
        self.recalled_from: PlanNumber | None = None
        """The worker was asked for its plans from this number on, and has not answered: no plan is made (rule 42)."""
        self._begun_before = 0
        """The number of a plan before which all have been begun, as the worker's answer to a recall has shown."""
        self.running: dict[JobId, Job] = {}
        """Jobs of the running batch and those sitting out, in the order in which they joined it."""
        self._config = config
        self._batch = batch
        self._policy = policy
        self._promotion = promotion
        self._lending = lending
        self._ranking = ranking
        self._counters = counters
        self.backlog = Backlog(batch, policy.lengths)
        """What the jobs still cost."""
        self._charging = Charging(config.charge)
        self._pace = Pace()
        self.lead = PlanLead(config.plans_in_flight)
        self._chunked = config.prefill_chunk_tokens is not None
        self._next_plan = 0
        self.passed_over: set[JobId] = set()
        """Jobs that the last result says were passed over, until the next plan."""
        self.stage_count = 1
        """Pipeline stages of the worker."""

    @property
    def next_plan(self) -> int:
        return self._next_plan

    @property
    def plans_ahead(self) -> int:
        """Plans under way, without those that are known to have been begun."""
        return min(len(self.unfinished), self._next_plan - self._begun_before)

    def may_plan(self, now_s: float) -> bool:
        """Whether one more plan may be under way. Beyond the least number of them one is made only while the batch goes
        on as it is: none of its jobs waits for blocks, nor does one that could join it.
        """
        if self.recalled_from is not None:
            return False
        under_way = self.plans_ahead
        if under_way < self.lead.least:
            return True
        if under_way >= self.lead.most(len(self._ranking), now_s):
            return False
        batch = self.unfinished[-1].jobs
        if any(self._waits(job) for job in batch):
            return False
        return len(batch) >= self._batch.jobs or not any(self._waits(job) for job in self._ranking.living())

    def _waits(self, job: Job) -> bool:
        """Whether a job that has tokens left to plan can't be planned now."""
        if job.is_ready or job.state is CLOSING:
            return False
        return job.expected_tokens - job.prompt_tokens < job.max_tokens

    def calibrate(self, profile: CostProfile, stage_count: int) -> None:
        """A worker joined: plan numbers restart at 0."""
        self._charging.calibrate(profile)
        self._pace.calibrate(profile, stage_count)
        self.lead.calibrate(stage_count)
        self._policy.paced(self._pace.factor)
        self.stage_count = stage_count
        self._next_plan = self._begun_before = 0

    def plannable(self, job: Job) -> bool:
        """Rules 1 and 2: the job is resident, has a token left that is not under way, and has capacity for its next
        entry.
        """
        expected = job.expected_tokens
        if job.state is not RESIDENT or job.is_held or job.cut_plan is not None:
            return False
        if expected - job.prompt_tokens >= job.max_tokens:
            return False
        return (min(expected, job.planned_tokens + 1) if self._chunked else expected) <= job.capacity_tokens

    def candidates(self) -> Iterator[Job]:
        """Ready jobs that the next plan may name, by rank."""
        if self.stage_count == 1:
            return self._ranking.ready()
        free = (job for job in self._ranking.ready() if not self._in_pipeline(job, self._next_plan))
        first = next(free, None)
        if first is not None:
            return chain((first,), free)
        return self._ranking.ready() if len(self.unfinished) < 2 else free

    def _passed_over_last(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """The jobs, behind the others those that the last result says were passed over: their prompts would take up the
        plan's tokens for nothing, should their guides still be compiled.
        """
        if not self.passed_over:
            return jobs
        passed_over, self.passed_over = self.passed_over, set()
        by_rank = list(jobs)
        return chain(
            (job for job in by_rank if job.job_id not in passed_over),
            (job for job in by_rank if job.job_id in passed_over),
        )

    def _in_pipeline(self, job: Job, number: int) -> bool:
        """Whether a plan names the job that another stage runs while the first stage runs plan `number`."""
        return job.in_flight > 0 and job.last_plan > number - self.stage_count

    def make(self, now_s: float) -> Flight | None:
        """The next plan; None if no job can run."""
        config = self._config
        batch = build_batch(
            self._passed_over_last(self.candidates()),
            max_batch=self._batch.jobs,
            max_batch_tokens=config.max_batch_tokens,
            prefill_chunk_tokens=config.prefill_chunk_tokens,
            closed_level=self._policy.closed_level,
        )
        if not batch:
            return None
        number = self._next_plan
        self._next_plan += 1
        sampling: list[JobId] = []
        cuts: list[tuple[JobId, float]] = []
        may_wait: list[JobId] = []
        is_sure = False
        running = self.running
        for job, from_token, to_token in batch:
            job_id = job.job_id
            running[job_id] = job
            job.in_flight += 1
            job.last_plan = number
            job.planned_tokens = to_token
            if job.first_planned_s is None:
                job.first_planned_s = now_s
                self._lending.held(job, job.capacity_tokens)
            tokens = to_token - from_token
            if tokens > 1 and (cut_after_s := self._policy.cut_after_s(job, tokens)) is not None:
                cuts.append((job_id, cut_after_s))
                job.cut_plan = number
            if job.is_guided and from_token == 0:
                may_wait.append(job_id)
                job.cut_plan = number
            samples = to_token == job.expected_tokens
            is_decode = samples and tokens == 1 and from_token >= job.prompt_tokens
            if not is_decode or job.promoted or job.lent_to_token is not None:
                is_sure = True
            if samples:
                sampling.append(job_id)
                job.expected_tokens = to_token + 1
            if not self.plannable(job):
                self._ranking.set_ready(job, False)
            if job.lent_to_token is not None:
                self._lending.planned(job, to_token)
        if len(running) > len(batch):
            self._note_preemptions(number)
        entries = tuple(records(PlanEntry, [(job.job_id, from_token, to_token) for job, from_token, to_token in batch]))
        jobs = [job for job, _, _ in batch]
        flight = Flight(PlanNumber(number), jobs, entries, sampling, tuple(cuts), now_s, tuple(may_wait), is_sure)
        self.unfinished.append(flight)
        return flight

    def finish(self, result: IterationResult, now_s: float, together: int) -> Outcome:
        """Take the result of the oldest plan, one of so many that came together. Raises ProtocolError if the result
        does not match that plan.
        """
        tokens = self._checked(result)
        flight = self.unfinished.popleft()
        self.lead.finished(result.duration_s)
        if self._pace.finished(flight.entries, flight.made_s, now_s, together):
            self._policy.paced(self._pace.factor)
        outcome = Outcome()
        plan_number = result.plan_number
        token_count = 0
        emits: list[tuple[JobId, PlanNumber, int, int]] = []
        top, ran = self._ranking.top, self._policy.ran
        shares_s = self._charging.shares_s(flight.entries, result.duration_s)
        for job, (_, from_token, to_token), service_s in zip(flight.jobs, flight.entries, shares_s, strict=True):
            token_count += to_token - from_token
            job.in_flight -= 1
            if job.in_flight == 0:
                job.waiting_since_s = now_s
            if job.state is CLOSING:
                continue
            job_id = job.job_id
            if job.cut_plan == plan_number and job_id in result.cut_job_ids:
                self._cut(job, from_token, has_limit=job_id in dict(flight.cut_after_s))
                continue
            job.finished_tokens = to_token
            token = tokens.get(job_id)
            if token is not None:  # every job that samples has one: _checked made sure
                output_tokens = job.known_tokens - job.prompt_tokens
                emits.append((job_id, plan_number, output_tokens, token.token_id))
                job.known_tokens += 1
                job.promoted = False
                job.last_token_s = now_s
                if job.known_tokens >= job.next_length_tokens:
                    self.backlog.advance(job)
                if job.first_token_s is None:
                    job.first_token_s = now_s
                    self._lending.sampled_first(job, now_s)
                if token.end_of_sequence or output_tokens + 1 == job.max_tokens:
                    outcome.ended.append((job, EndReason.STOP if token.end_of_sequence else EndReason.LENGTH))
                    continue
            if job.cut_plan == plan_number:
                job.cut_plan = None
                self.refresh(job)
            if job is top and not job.promoted:
                self._ranking.ran(job)
            place = ran(job, service_s)
            if place is not None:
                self._place(job, place)
        self._counters.iteration(token_count)
        outcome.emits = records(Emit, emits)
        self._counters.generation_tokens += len(emits)
        return outcome

    def recalled(self, first_number: PlanNumber | None, now_s: float) -> None:
        """The worker gave back what it has not begun of the plans that it was asked for. If it kept one of these, it
        has begun that and all before; else nobody knows how many of the others wait.
        """
        assert self.recalled_from is not None, "nothing was asked for"
        if first_number is None or first_number > self.recalled_from:
            self._begun_before = self._next_plan
        self.recalled_from = None
        self.lead.recalled(now_s)

    def undo_last(self, now_s: float) -> PlanNumber:
        """The last plan will not be run: its jobs are where they were before it was made. Returns its number."""
        flight = self.unfinished.pop()
        for job, entry in zip(flight.jobs, flight.entries, strict=True):
            job.in_flight -= 1
            if job.in_flight == 0:
                job.waiting_since_s = now_s
            if job.state is not CLOSING:
                job.planned_tokens = entry.from_token
                job.expected_tokens = entry.to_token
                self.refresh(job)
        return flight.plan_number

    def refresh(self, job: Job) -> None:
        """Update whether the job can be planned."""
        self._ranking.set_ready(job, self.plannable(job))

    def preempted(self, job: Job) -> None:
        """Count a preemption if the job was in the running batch, and remove it from there."""
        if self.running.pop(job.job_id, None) is not None:
            job.preemptions += 1
            self._counters.preemptions += 1

    def void(self) -> None:
        """The worker is gone, and its plans with it."""
        self.unfinished.clear()
        self.recalled_from = None
        self.running.clear()
        self.passed_over.clear()

    def _checked(self, result: IterationResult) -> dict[JobId, SampledToken]:
        """The result's tokens by job: exactly one for every part that samples and was not cut."""
        if not self.unfinished or self.unfinished[0].plan_number != result.plan_number:
            under_way = [flight.plan_number for flight in self.unfinished]
            raise ProtocolError(
                f"the worker sent the result of plan {result.plan_number}, but the plans under way, oldest first, "
                f"are {under_way}"
            )
        flight = self.unfinished[0]
        tokens = {token.job_id: token for token in result.tokens}
        if len(tokens) == len(result.tokens) and list(tokens) == flight.sampling_job_ids and not result.cut_job_ids:
            return tokens  # almost always; the checks below are slower
        may_be_cut = [*(job_id for job_id, _ in flight.cut_after_s), *flight.may_wait]
        if not all(job_id in may_be_cut for job_id in result.cut_job_ids):
            raise ProtocolError(
                f"the worker cut {result.cut_job_ids} in plan {result.plan_number}, "
                f"but only {may_be_cut} had a time limit or start with a guide"
            )
        sampling = {
            part.job.job_id: part.job
            for part in flight.parts
            if part.samples and part.job.job_id not in result.cut_job_ids
        }
        # A job that ended in an earlier plan may be missing: the worker sees an end of sequence before the scheduler.
        due = [job_id for job_id, known in sampling.items() if known.state is not CLOSING]
        if (
            len(tokens) != len(result.tokens)
            or not all(job_id in sampling for job_id in tokens)
            or not all(job_id in tokens for job_id in due)
        ):
            raise ProtocolError(
                f"the worker sent tokens for {list(tokens)} in the result of plan {result.plan_number}, "
                f"but {due} sample in it"
            )
        return tokens

    def _cut(self, job: Job, from_token: int, has_limit: bool) -> None:
        """The prefill was abandoned and nothing of it is kept: it restarts from the same position. Without a limit it
        was not begun, and the job keeps its place.
        """
        job.cut_plan = None
        job.planned_tokens = job.finished_tokens = from_token
        job.expected_tokens = job.known_tokens
        self.refresh(job)
        if has_limit:
            self._ranking.ran(job)
            self._place(job, self._policy.cut(job))
        else:
            self.passed_over.add(job.job_id)

    def _place(self, job: Job, place: Rank) -> None:
        if place.level > job.place.level:
            self._counters.demotions += 1
        self._ranking.place(job, place)
        self._promotion.watch(job)

    def _note_preemptions(self, number: int) -> None:
        """A ready job of the running batch that is not in the new plan has been preempted."""
        left = [job for job in self.running.values() if job.last_plan != number and job.is_ready]
        for job in left:
            if not self._in_pipeline(job, number):
                self.preempted(job)
