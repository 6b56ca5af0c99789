"""What the traces of sampled jobs tell of the KV manager: each offload and each upload. It sees the turns of the
groups' machines and changes nothing in them. The scheduler says which jobs are traced, and when one is over: a job that
is released here may only have moved to another group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.domain.ids import CommandNumber, JobId
from services.domain.protocol import Done, Offload, Upload
from services.kvmanager.machine.kv_manager_events import (
    Command,
    Event,
    FromWorker,
    KvWorkerLost,
    SchedulerLost,
    ToWorker,
)
from services.tracing.job_spans import JobSpans
from services.tracing.tracer import Tracer

MOST_TRACED_JOBS = 10_000
OFFLOAD, UPLOAD = "fastserve.offload", "fastserve.upload"
MOST_SPANS = {OFFLOAD: 7, UPLOAD: 7}
BLOCKS = "fastserve.blocks"


@dataclass(slots=True)
class _CopiedJob:
    """A traced job. `is_over`: it has ended; its last copies may still be under way."""

    traceparent: str
    spans: JobSpans = field(default_factory=lambda: JobSpans(MOST_SPANS))
    copies: int = 0
    is_over: bool = False
    goes_on: bool = False
    """Whether it is over here alone."""


@dataclass(slots=True)
class _Copy:
    """A copy under way."""

    job: _CopiedJob
    name: str
    start_s: float
    blocks: int


class CopyTraces:
    """The traced jobs of all groups, and their copies under way."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._jobs: dict[JobId, _CopiedJob] = {}
        self._copies: dict[tuple[int, CommandNumber], _Copy] = {}

    def learn(self, contexts: Iterable[tuple[JobId, str]]) -> None:
        """The scheduler says that jobs are traced, and without a context that they are over. It says the former again
        in a new epoch, and in another group.
        """
        for job_id, traceparent in contexts:
            if not traceparent:
                self._ended(job_id)
            elif job_id not in self._jobs and len(self._jobs) < MOST_TRACED_JOBS:
                self._jobs[job_id] = _CopiedJob(traceparent)

    def heard(self, group: int, events: Sequence[Event], commands: Sequence[Command], now_s: float) -> None:
        """A turn of a group's machine."""
        if not self._jobs and not self._copies:
            return
        for event in events:
            match event:
                case FromWorker(_, Done(command_number)):
                    self._done(group, command_number, now_s)
                case KvWorkerLost():
                    self._lose_copies(group, now_s)
                case SchedulerLost():
                    self.close(now_s)
        for command in commands:
            match command:
                case ToWorker(_, Offload(command_number, job_id, moves)):
                    self._begin(group, command_number, job_id, OFFLOAD, len(moves), now_s)
                case ToWorker(_, Upload(command_number, job_id, _, moves)):
                    self._begin(group, command_number, job_id, UPLOAD, len(moves), now_s)

    def close(self, now_s: float) -> None:
        """Nothing more is heard of the jobs: they go on without this KV manager, or with another scheduler."""
        for group in {key[0] for key in self._copies}:
            self._lose_copies(group, now_s)
        for job_id, job in list(self._jobs.items()):
            job.goes_on = True
            self._ended(job_id)

    def _begin(
        self, group: int, command_number: CommandNumber, job_id: JobId, name: str, blocks: int, now_s: float
    ) -> None:
        job = self._jobs.get(job_id)
        if job is not None and blocks:
            job.copies += 1
            self._copies[group, command_number] = _Copy(job, name, now_s, blocks)

    def _done(self, group: int, command_number: CommandNumber, now_s: float) -> None:
        copy = self._copies.pop((group, command_number), None)
        if copy is not None:
            copy.job.spans.add(copy.name, copy.start_s, now_s, {BLOCKS: copy.blocks})
            copy.job.copies -= 1
            self._record_if_over(copy.job)

    def _lose_copies(self, group: int, now_s: float) -> None:
        for key in [key for key in self._copies if key[0] == group]:
            self._done(*key, now_s)

    def _ended(self, job_id: JobId) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            job.is_over = True
            self._record_if_over(job)

    def _record_if_over(self, job: _CopiedJob) -> None:
        if job.is_over and not job.copies:
            self._tracer.record(job.traceparent, job.spans.merged() if job.goes_on else job.spans.intervals)
