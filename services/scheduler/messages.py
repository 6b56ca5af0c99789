"""What the handlers put into the driver's inbox."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from services.domain.ids import Epoch, JobId
from services.domain.work import CancelReason, KvLinkItem, Submission, WorkerFacts, WorkerResult

if TYPE_CHECKING:
    from services.scheduler.peers import GatewayPeer, WorkerPeer


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
