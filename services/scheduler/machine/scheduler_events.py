"""Events that the scheduler's machine takes, and commands that it returns. The messages of PROTOCOL itself are in
services.domain.protocol.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import IterationResult, KvToScheduler, PlanEntry, PlansGivenBack, SchedulerToKv

# --- events ----------------------------------------------------------------------------------------------------------


class Submit(NamedTuple):
    """A new job; no living job has its id. `deadline_s` is a time on the same clock as `now_s`. `client_number` stands
    for the client, 0 if it gave no name. `arrival_number` counts the arrivals at all groups, so that an order by
    arrival outlasts a move; None: there is one group, whose machine counts them. `is_guided`: its first entry at a
    worker may be passed over, because its guide is not compiled yet. `arrived_s`: when it came, if it has waited for a
    group; None: now.
    """

    job_id: JobId
    prompt_tokens: int
    max_tokens: int
    deadline_s: float | None = None
    client_number: int = 0
    arrival_number: int | None = None
    is_guided: bool = False
    arrived_s: float | None = None


class MovingJob(NamedTuple):
    """A job on its way from one group to another: its tokens, its age, its level, and what its statistics need. Its KV
    stays behind. `service_s` is the service received at its level.
    """

    job_id: JobId
    arrival_number: int
    prompt_tokens: int
    known_tokens: int
    finished_tokens: int
    max_tokens: int
    arrived_s: float
    waiting_since_s: float
    deadline_s: float | None
    client_number: int
    level: int
    service_s: float
    promoted: bool
    preemptions: int
    first_planned_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    is_guided: bool = False


class Withdraw(NamedTuple):
    """The job is to leave this group. It does if no unfinished plan names it, and no KV of it is on the device unless
    it is held.
    """

    job_id: JobId


class Hold(NamedTuple):
    """The worker is about to end: these jobs are not planned any more, so that they can leave. All others are planned
    as ever.
    """

    job_ids: tuple[JobId, ...]


class TakeIn(NamedTuple):
    """A job comes from another group."""

    job: MovingJob


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


Event = (
    Submit
    | Withdraw
    | Hold
    | TakeIn
    | Cancel
    | WorkerJoined
    | WorkerLost
    | KvConnected
    | KvLost
    | FromKv
    | IterationResult
    | PlansGivenBack
    | Tick
)

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


class RecallPlans(NamedTuple):
    """Ask the worker for the plans from this number on, as far as it has not begun them. No plan follows until it
    answers (PlansGivenBack).
    """

    epoch: Epoch
    first_plan_number: PlanNumber


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


class Withdrawn(NamedTuple):
    """The job has left this group; another one must take it in."""

    job: MovingJob

    @property
    def job_id(self) -> JobId:
        """Which job left."""
        return self.job.job_id


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


Command = ToKv | SendPlan | RecallPlans | DropWorker | Emit | End | Withdrawn | Reject | WakeAt
