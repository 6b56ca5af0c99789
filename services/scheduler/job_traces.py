"""What the traces of sampled jobs tell of the scheduler: time in the queue, at each level, in prefill, recomputation
and decode. It sees the turns of the groups' machines, as recordings do, and changes nothing in them. While no job is
traced, a turn costs one look at an empty dict.

A plan is made while the one before it runs, so a job's part of an iteration is taken to begin when its plan is sent or
when the job's part before it ended, whichever is later. Parts of one kind that follow each other without a gap are one
stretch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.domain.ids import JobId, PlanNumber
from services.domain.protocol import (
    Arrive,
    IterationResult,
    Jobs,
    Order,
    PlanEntry,
    PlansGivenBack,
    Release,
    SchedulerToKv,
)
from services.domain.submission import Submission
from services.scheduler.machine.scheduler_events import (
    Command,
    End,
    Event,
    KvLost,
    Reject,
    SendPlan,
    ToKv,
    WorkerJoined,
    WorkerLost,
)
from services.tracing.job_spans import JobSpans
from services.tracing.tracer import OpenSpan, Tracer

MOST_TRACED_JOBS = 10_000
JOB, QUEUE, LEVEL = "fastserve.job", "fastserve.queue", "fastserve.level"
PREFILL, RECOMPUTE, DECODE = "fastserve.prefill", "fastserve.recompute", "fastserve.decode"
MOST_SPANS = {QUEUE: 1, LEVEL: 10, PREFILL: 4, RECOMPUTE: 6, DECODE: 10}
"""With the job's own span, the gateway's two and the KV manager's 14 that is 48. A trace has at most 64 a job: what is
left is for a scheduler that ends and hands the job over, and for KV managers that end; both leave one of each name.
"""
MOST_KV_LIVES = 3
"""KV managers, one after the other, that hear from one scheduler that a job is traced."""
TOKENS = "fastserve.tokens"
_GAP_S = 1e-6


@dataclass(slots=True)
class _Stretch:
    """Iterations of one kind that followed each other."""

    name: str
    start_s: float
    end_s: float
    tokens: int


@dataclass(slots=True)
class _TracedJob:
    """A living job that is traced."""

    span: OpenSpan
    arrived_s: float
    known_tokens: int
    """When it came: computing them is its prefill."""
    spans: JobSpans = field(default_factory=lambda: JobSpans(MOST_SPANS))
    computed: int = 0
    """Positions whose KV existed at some time: computing them again is recomputation."""
    is_planned: bool = False
    level: int | None = None
    level_since_s: float = 0.0
    stretch: _Stretch | None = None
    kv_lives: int = 0


@dataclass(slots=True)
class _Part:
    """A traced job's part of a plan under way."""

    job: _TracedJob
    name: str
    sent_s: float
    entry: PlanEntry


class JobTraces:
    """The traced jobs, and the plans under way that name any of them."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._jobs: dict[JobId, _TracedJob] = {}
        self._plans: dict[tuple[int, PlanNumber], list[_Part]] = {}
        self._told: set[JobId] = set()
        """The jobs of which the present KV manager knows that they are traced, and not yet that they are over."""

    def submitted(self, submission: Submission, now_s: float) -> None:
        """A gateway submitted a job; one that is alive already is joined, and goes on in its own trace."""
        if not submission.traceparent or submission.job_id in self._jobs or len(self._jobs) >= MOST_TRACED_JOBS:
            return
        labels = {"fastserve.job_id": submission.job_id, "gen_ai.usage.input_tokens": len(submission.prompt)}
        span = self._tracer.begin(JOB, submission.traceparent, now_s, labels)
        known_tokens = len(submission.prompt) + len(submission.output)
        self._jobs[submission.job_id] = _TracedJob(span, now_s, known_tokens)

    def contexts(self, messages: Iterable[SchedulerToKv]) -> list[tuple[JobId, str]]:
        """For the KV manager: the traced jobs that these messages announce, and with an empty context those that are
        over. A job that only leaves its group is not.
        """
        if not self._jobs and not self._told:
            return []
        announced: list[JobId] = []
        over: list[JobId] = []
        for message in messages:
            match message:
                case Arrive(arrived):
                    announced.append(arrived.job_id)
                case Jobs():
                    announced.extend(job.job_id for job in message.jobs)
                    over.extend(sorted(self._told - self._jobs.keys()))
                case Release(job_id) if job_id in self._told and job_id not in self._jobs:
                    over.append(job_id)
        self._told.difference_update(over)
        told = [(job_id, "") for job_id in over]
        for job_id in announced:
            if (traced := self._announced(job_id)) is not None:
                told.append((job_id, traced.span.traceparent))
        return told

    def _announced(self, job_id: JobId) -> _TracedJob | None:
        """The job, if it is traced and the KV manager is to know."""
        job = self._jobs.get(job_id)
        if job is None:
            return None
        if job_id not in self._told:
            job.kv_lives += 1
            if job.kv_lives <= MOST_KV_LIVES:
                self._told.add(job_id)
        return job if job_id in self._told else None

    def heard(self, group: int, events: Sequence[Event], commands: Sequence[Command], now_s: float) -> None:
        """A turn of a group's machine."""
        if not self._jobs and not self._told:
            self._plans.clear()
            return
        for event in events:
            match event:
                case IterationResult():
                    self._finished(group, event, now_s)
                case PlansGivenBack(_, int(first)):
                    for key in [key for key in self._plans if key[0] == group and key[1] >= first]:
                        del self._plans[key]
                case KvLost():
                    self._told.clear()
                    self._epoch_ended(group, now_s)
                case WorkerJoined() | WorkerLost():
                    self._epoch_ended(group, now_s)
        for command in commands:
            match command:
                case SendPlan():
                    self._sent(group, command, now_s)
                case ToKv(_, Order(changes)) | ToKv(_, Jobs(order=changes)):
                    for job_id, rank in changes:
                        self._ranked(job_id, rank.level, now_s)
                case End(job_id, reason):
                    self.ended(job_id, now_s, reason.value)
                case Reject(job_id, kind):
                    self.ended(job_id, now_s, f"rejected: {kind.value}")

    def ended(self, job_id: JobId, now_s: float, how: str) -> None:
        """The job is over: its spans are made."""
        self._end(job_id, now_s, how, goes_on=False)

    def _end(self, job_id: JobId, now_s: float, how: str, *, goes_on: bool) -> None:
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        self._close_stretch(job)
        if job.level is not None:
            self._close_level(job, now_s)
        if not job.is_planned:
            job.spans.add(QUEUE, job.arrived_s, now_s)
        job.span.record(job.spans.merged() if goes_on else job.spans.intervals)
        job.span.set({"fastserve.end": how})
        job.span.end(now_s)

    def close(self, now_s: float) -> None:
        """The service ends: so do the traced jobs, here."""
        for job_id in list(self._jobs):
            self._end(job_id, now_s, "handed over", goes_on=True)

    def _sent(self, group: int, plan: SendPlan, now_s: float) -> None:
        parts: list[_Part] = []
        for entry in plan.entries:
            job = self._jobs.get(entry.job_id)
            if job is None:
                continue
            if not job.is_planned:
                job.is_planned = True
                job.spans.add(QUEUE, job.arrived_s, now_s)
            if entry.from_token < job.computed:
                name = RECOMPUTE
            else:
                name = PREFILL if entry.from_token < job.known_tokens else DECODE
            parts.append(_Part(job, name, now_s, entry))
        if parts:
            self._plans[group, plan.plan_number] = parts

    def _finished(self, group: int, result: IterationResult, now_s: float) -> None:
        for part in self._plans.pop((group, result.plan_number), ()):
            job, stretch = part.job, part.job.stretch
            if part.entry.job_id in result.cut_job_ids:
                continue
            job.computed = max(job.computed, part.entry.to_token)
            tokens = part.entry.to_token - part.entry.from_token
            start_s = part.sent_s if stretch is None else max(part.sent_s, stretch.end_s)
            if stretch is not None and stretch.name == part.name and start_s - stretch.end_s < _GAP_S:
                stretch.end_s = now_s
                stretch.tokens += tokens
            else:
                self._close_stretch(job)
                job.stretch = _Stretch(part.name, start_s, now_s, tokens)

    def _epoch_ended(self, group: int, now_s: float) -> None:
        """What the plans under way would have computed is lost."""
        lost = {id(part.job): part.job for key in self._plans if key[0] == group for part in self._plans[key]}
        for job in lost.values():
            job.span.event("fastserve.epoch_ended", now_s)
            self._close_stretch(job)
        self._plans = {key: parts for key, parts in self._plans.items() if key[0] != group}

    def _ranked(self, job_id: JobId, level: int, now_s: float) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.level == level:
            return
        if job.level is not None:
            self._close_level(job, now_s)
        job.level, job.level_since_s = level, now_s

    def _close_level(self, job: _TracedJob, now_s: float) -> None:
        assert job.level is not None
        job.spans.add(LEVEL, job.level_since_s, now_s, labels={"fastserve.level": job.level})

    def _close_stretch(self, job: _TracedJob) -> None:
        stretch, job.stretch = job.stretch, None
        if stretch is not None:
            job.spans.add(stretch.name, stretch.start_s, stretch.end_s, {TOKENS: stretch.tokens})
