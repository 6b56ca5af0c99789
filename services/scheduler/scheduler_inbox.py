"""The items that handlers and links post to the driver's inbox."""

from collections.abc import Sequence
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.iteration import WorkerResult
from services.domain.protocol import PlansGivenBack
from services.domain.server_status import KvLinkItem
from services.domain.submission import Submission
from services.domain.worker_facts import WorkerFacts
from services.runtime.inbox import Wakeup
from services.scheduler.outgoing_streams import GatewayStream, WorkerStream

GATHER_S = 0.005
"""Submissions and cancels that come so soon after a turn with others wait for more, for so long at most: each turn of a
burst would cost a round of messages to the KV manager, the worker and back.
"""


class GatewayJoined(NamedTuple):
    """A gateway said hello."""

    stream: GatewayStream


class GatewayLeft(NamedTuple):
    """Its stream ended."""

    stream: GatewayStream


class Submitted(NamedTuple):
    """A gateway asks for a job's output."""

    stream: GatewayStream
    submission: Submission


class Cancelled(NamedTuple):
    """A gateway no longer wants a job's output."""

    stream: GatewayStream
    job_id: JobId
    reason: EndReason


class WorkerArrived(NamedTuple):
    """A compatible worker said hello."""

    stream: WorkerStream
    facts: WorkerFacts


class WorkerLeft(NamedTuple):
    """Its stream ended."""

    stream: WorkerStream


class WorkerSaid(NamedTuple):
    """A worker sent the result of an iteration."""

    stream: WorkerStream
    result: WorkerResult


class WorkerGaveBack(NamedTuple):
    """A worker answered a recall."""

    stream: WorkerStream
    given_back: PlansGivenBack


class WorkerDrains(NamedTuple):
    """A worker was told to end, and will in `limit_s` seconds at the latest."""

    stream: WorkerStream
    limit_s: float


class KvOpened(NamedTuple):
    """The stream to the KV manager is open."""


class KvClosed(NamedTuple):
    """The stream to the KV manager ended."""


class KvMet(NamedTuple):
    """The KV manager has met workers of epochs up to this one."""

    newest_epoch: Epoch


class KvSaid(NamedTuple):
    """The messages of one turn of the KV manager about a group."""

    group: int
    epoch: Epoch
    items: Sequence[KvLinkItem]


class KvBroke(NamedTuple):
    """The KV manager sent something about a group that can't be read."""

    group: int
    error: ProtocolError


Inbound = (
    GatewayJoined
    | GatewayLeft
    | Submitted
    | Cancelled
    | WorkerArrived
    | WorkerLeft
    | WorkerSaid
    | WorkerGaveBack
    | WorkerDrains
    | KvOpened
    | KvClosed
    | KvMet
    | KvSaid
    | KvBroke
    | Wakeup
)
