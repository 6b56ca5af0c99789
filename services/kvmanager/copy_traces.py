"""What the traces of sampled jobs tell of the KV manager: each offload and each upload. It sees the turns of the
groups' machines and changes nothing in them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.domain.ids import CommandNumber, JobId
from services.domain.protocol import Done, Offload, Release, Upload
from services.kvmanager.machine.kv_manager_events import (
    Command,
    Event,
    FromScheduler,
    FromWorker,
    KvWorkerLost,
    SchedulerLost,
    ToWorker,
)
from services.tracing.job_spans import JobSpans
from services.tracing.tracer import Tracer

MOST_TRACED_JOBS = 10_000
OFFLOAD, UPLOAD = "fastserve.offload", "fastserve.upload"
MOST_SPANS = {OFFLOAD: 8, UPLOAD: 8}
BLOCKS = "fastserve.blocks"


@dataclass(slots=True)
class _TracedStay:
    """A job's stay in a group. `is_over`: it was released; its last copies may still be under way."""

    traceparent: str
    spans: JobSpans = field(default_factory=lambda: JobSpans(MOST_SPANS))
    copies: int = 0
    is_over: bool = False


@dataclass(slots=True)
class _Copy:
    """A copy under way."""

    stay: _TracedStay
    name: str
    start_s: float
    blocks: int


class CopyTraces:
    """The traced jobs of all groups, and their copies under way."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._stays: dict[JobId, _TracedStay] = {}
        self._copies: dict[tuple[int, CommandNumber], _Copy] = {}

    def learn(self, contexts: Iterable[tuple[JobId, str]]) -> None:
        """The scheduler says that jobs are traced. It says so again in a new epoch."""
        for job_id, traceparent in contexts:
            if job_id not in self._stays and len(self._stays) < MOST_TRACED_JOBS:
                self._stays[job_id] = _TracedStay(traceparent)

    def heard(self, group: int, events: Sequence[Event], commands: Sequence[Command], now_s: float) -> None:
        """A turn of a group's machine."""
        if not self._stays and not self._copies:
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
        for event in events:
            match event:
                case FromScheduler(_, Release(job_id)):
                    self._released(job_id)

    def close(self, now_s: float) -> None:
        """Nothing more is heard of the jobs."""
        for group in {key[0] for key in self._copies}:
            self._lose_copies(group, now_s)
        for job_id in list(self._stays):
            self._released(job_id)

    def _begin(
        self, group: int, command_number: CommandNumber, job_id: JobId, name: str, blocks: int, now_s: float
    ) -> None:
        stay = self._stays.get(job_id)
        if stay is not None and blocks:
            stay.copies += 1
            self._copies[group, command_number] = _Copy(stay, name, now_s, blocks)

    def _done(self, group: int, command_number: CommandNumber, now_s: float) -> None:
        copy = self._copies.pop((group, command_number), None)
        if copy is not None:
            copy.stay.spans.add(copy.name, copy.start_s, now_s, {BLOCKS: copy.blocks})
            copy.stay.copies -= 1
            self._record_if_over(copy.stay)

    def _lose_copies(self, group: int, now_s: float) -> None:
        for key in [key for key in self._copies if key[0] == group]:
            self._done(*key, now_s)

    def _released(self, job_id: JobId) -> None:
        stay = self._stays.pop(job_id, None)
        if stay is not None:
            stay.is_over = True
            self._record_if_over(stay)

    def _record_if_over(self, stay: _TracedStay) -> None:
        if stay.is_over and not stay.copies:
            self._tracer.record(stay.traceparent, stay.spans.intervals)
