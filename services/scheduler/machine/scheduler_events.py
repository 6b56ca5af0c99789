"""Events that the scheduler's machine takes and commands that it gives. The bare protocol's messages are in
services.domain.protocol.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import IterationResult, KvToScheduler, PlanEntry, SchedulerToKv

# --- events ----------------------------------------------------------------------------------------------------------


class Submit(NamedTuple):
    """A new job; its id is not that of a living one. `deadline_s` is a time of the same clock as `now_s`."""

    job_id: JobId
    prompt_tokens: int
    max_tokens: int
    deadline_s: float | None = None


class Cancel(NamedTuple):
    """Nobody wants more of the job; unknown ids are ignored, because the end may have been on its way."""

    job_id: JobId
    reason: EndReason


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker dialled in, its pools empty. An epoch that is not newer than all before is ignored. So many batches run
    at a time as it has pipeline stages.
    """

    epoch: Epoch
    device_pool_tokens: int
    max_model_len: int
    profile: CostProfile
    stage_count: int = 1


class WorkerLost(NamedTuple):
    """The worker's stream ended."""

    epoch: Epoch


class KvConnected(NamedTuple):
    """A new stream to the KV manager is open; nothing was sent on it yet."""


class KvLost(NamedTuple):
    """The stream to the KV manager ended."""


class FromKv(NamedTuple):
    """A message of the KV manager, about this worker epoch."""

    epoch: Epoch
    message: KvToScheduler


class Tick(NamedTuple):
    """Time has passed: a WakeAt came due."""


Event = Submit | Cancel | WorkerJoined | WorkerLost | KvConnected | KvLost | FromKv | IterationResult | Tick

# --- commands --------------------------------------------------------------------------------------------------------


class ToKv(NamedTuple):
    """Send to the KV manager. All of a turn travel as one batch, in order."""

    epoch: Epoch
    message: SchedulerToKv


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Send to the worker. `cut_after_s`: prefills to abandon when they have run so long."""

    epoch: Epoch
    plan_number: PlanNumber
    entries: tuple[PlanEntry, ...]
    cut_after_s: tuple[tuple[JobId, float], ...] = ()


class DropWorker(NamedTuple):
    """End the worker's stream, so that it comes back with a new epoch and empty pools."""

    epoch: Epoch
    reason: str


class Emit(NamedTuple):
    """An output token of a job, from this plan's result; numbers count from 0."""

    job_id: JobId
    plan_number: PlanNumber
    token_number: int
    token_id: int


class End(NamedTuple):
    """The job's last command. Times are seconds: waiting for its first plan, from there to the first token, from there
    to the last.
    """

    job_id: JobId
    reason: EndReason
    preemptions: int
    queue_s: float
    prefill_s: float
    decode_s: float


class RejectKind(Enum):
    """Why a job was not admitted; each becomes one typed error."""

    INVALID = "invalid"
    FULL = "full"
    NOT_READY = "not-ready"


class Reject(NamedTuple):
    """The job was not admitted. `field` is set for INVALID, `retry_after_s` for the others."""

    job_id: JobId
    kind: RejectKind
    field: str
    message: str
    retry_after_s: float


class WakeAt(NamedTuple):
    """Send a Tick at this time, instead of at any time asked for before."""

    time_s: float


Command = ToKv | SendPlan | DropWorker | Emit | End | Reject | WakeAt
