"""Events that the scheduler's machine takes, and commands that it returns. The messages of PROTOCOL itself are in
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
    """A new job; no living job has its id. `deadline_s` is a time on the same clock as `now_s`. `client_number` stands
    for the client, 0 if it gave no name.
    """

    job_id: JobId
    prompt_tokens: int
    max_tokens: int
    deadline_s: float | None = None
    client_number: int = 0


class Cancel(NamedTuple):
    """The job is no longer wanted. Unknown ids are ignored, because the job may just have ended."""

    job_id: JobId
    reason: EndReason


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker dialled in with empty pools. An epoch that is not newer than all earlier ones is ignored. As many
    batches run at a time as the worker has pipeline stages.
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
    """A new stream to the KV manager is open; nothing has been sent on it yet."""


class KvLost(NamedTuple):
    """The stream to the KV manager ended."""


class FromKv(NamedTuple):
    """A message from the KV manager about this worker epoch."""

    epoch: Epoch
    message: KvToScheduler


class Tick(NamedTuple):
    """The time of a WakeAt has come."""


Event = Submit | Cancel | WorkerJoined | WorkerLost | KvConnected | KvLost | FromKv | IterationResult | Tick

# --- commands --------------------------------------------------------------------------------------------------------


class ToKv(NamedTuple):
    """Send to the KV manager. All messages of a turn travel as one batch, in order."""

    epoch: Epoch
    message: SchedulerToKv


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Send to the worker. `cut_after_s`: prefills to abandon after running for this long."""

    epoch: Epoch
    plan_number: PlanNumber
    entries: tuple[PlanEntry, ...]
    cut_after_s: tuple[tuple[JobId, float], ...] = ()


class DropWorker(NamedTuple):
    """End the worker's stream, so that the worker comes back with a new epoch and empty pools."""

    epoch: Epoch
    reason: str


class Emit(NamedTuple):
    """An output token of a job, from this plan's result; tokens are numbered from 0."""

    job_id: JobId
    plan_number: PlanNumber
    token_number: int
    token_id: int


class End(NamedTuple):
    """The job's last command. `queue_s`: from its arrival to its first plan; `prefill_s`: from there to the first
    token; `decode_s`: from there to the end.
    """

    job_id: JobId
    reason: EndReason
    preemptions: int
    queue_s: float
    prefill_s: float
    decode_s: float


class RejectKind(Enum):
    """Why a job was not admitted; each kind becomes one typed error."""

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
    """Send a Tick at this time; replaces any earlier WakeAt."""

    time_s: float


Command = ToKv | SendPlan | DropWorker | Emit | End | Reject | WakeAt
