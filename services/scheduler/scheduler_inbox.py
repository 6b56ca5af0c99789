"""What the handlers put into the driver's inbox."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.iteration import WorkerResult
from services.domain.server_status import KvLinkItem
from services.domain.submission import Submission
from services.domain.worker_facts import WorkerFacts

if TYPE_CHECKING:
    from services.scheduler.outgoing_streams import GatewayStream, WorkerStream


class GatewayJoined(NamedTuple):
    """A gateway said hello."""

    peer: "GatewayStream"


class GatewayLeft(NamedTuple):
    """Its stream ended."""

    peer: "GatewayStream"


class Submitted(NamedTuple):
    """A gateway wants a job's output."""

    peer: "GatewayStream"
    submission: Submission


class Cancelled(NamedTuple):
    """A gateway wants no more of it."""

    peer: "GatewayStream"
    job_id: JobId
    reason: EndReason


class WorkerArrived(NamedTuple):
    """A worker said hello, and fits."""

    peer: "WorkerStream"
    facts: WorkerFacts


class WorkerLeft(NamedTuple):
    """Its stream ended."""

    peer: "WorkerStream"


class WorkerSaid(NamedTuple):
    """An iteration ended."""

    peer: "WorkerStream"
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
