"""What the scheduler's shell exchanges with its gateways, and what its handlers put into the driver's inbox."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from services.domain.errors import FastServeError
from services.domain.ids import Epoch, JobId
from services.domain.sampling import JobSampling
from services.domain.work import KvLinkItem, TokenLogprob, WorkerFacts, WorkerResult

if TYPE_CHECKING:
    from services.scheduler.peers import GatewayPeer, WorkerPeer

# --- gateways --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a gateway submits it: `body_digest` is that of the request's body."""

    job: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    resume_from_token: int = 0
    deadline_in_s: float | None = None


class CancelReason(Enum):
    """Why a gateway ends a job."""

    CLIENT_GONE = "client-gone"
    STOP_STRING = "stop-string"
    DEADLINE = "deadline"


class Finish(Enum):
    """How a job ended that was not refused and did not fail."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class JobTimings(NamedTuple):
    """Where a job's time went: see JobTimings in scheduler.proto."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int


class JobUpdate(NamedTuple):
    """News of one job for one gateway. With `finish` (and timings) or `error` it is the last."""

    job: JobId
    first_token_number: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: Finish | None = None
    error: FastServeError | None = None
    timings: JobTimings | None = None


# --- the driver's inbox ----------------------------------------------------------------------------------------------


class GatewayJoined(NamedTuple):
    """A gateway said hello."""

    peer: "GatewayPeer"


class GatewayLeft(NamedTuple):
    """Its stream ended."""

    peer: "GatewayPeer"


class Submitted(NamedTuple):
    """A gateway wants a job's output."""

    peer: "GatewayPeer"
    submission: Submission


class Cancelled(NamedTuple):
    """A gateway wants no more of it."""

    peer: "GatewayPeer"
    job: JobId
    reason: CancelReason


class WorkerArrived(NamedTuple):
    """A worker said hello, and fits."""

    peer: "WorkerPeer"
    facts: WorkerFacts


class WorkerLeft(NamedTuple):
    """Its stream ended."""

    peer: "WorkerPeer"


class WorkerSaid(NamedTuple):
    """An iteration ended."""

    peer: "WorkerPeer"
    result: WorkerResult


class KvOpened(NamedTuple):
    """The stream to the KV manager is open."""


class KvClosed(NamedTuple):
    """It ended."""


class KvSaid(NamedTuple):
    """One turn of the KV manager."""

    epoch: Epoch
    items: Sequence[KvLinkItem]


class Nudge(NamedTuple):
    """Nothing happened but time, or somebody waits for room."""


Inbound = (
    GatewayJoined
    | GatewayLeft
    | Submitted
    | Cancelled
    | WorkerArrived
    | WorkerLeft
    | WorkerSaid
    | KvOpened
    | KvClosed
    | KvSaid
    | Nudge
)
