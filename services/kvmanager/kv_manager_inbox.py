"""The items that the streams post to the driver's inbox."""

from collections.abc import Sequence
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.ids import Epoch
from services.domain.protocol import Applied, Done, SchedulerToKv
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.kv_streams import KvWorkerStream, SchedulerStream
from services.runtime.inbox import Wakeup


class SchedulerArrived(NamedTuple):
    """A stream of the scheduler opened."""

    stream: SchedulerStream


class SchedulerSaid(NamedTuple):
    """The messages of one turn of the scheduler about a group."""

    stream: SchedulerStream
    group: int
    epoch: Epoch
    messages: Sequence[SchedulerToKv]


class SchedulerBroke(NamedTuple):
    """The scheduler sent something about a group that can't be read."""

    stream: SchedulerStream
    group: int
    error: ProtocolError


class SchedulerLeft(NamedTuple):
    """The stream ended."""

    stream: SchedulerStream


class KvWorkerArrived(NamedTuple):
    """A worker said hello."""

    stream: KvWorkerStream
    facts: KvWorkerFacts


class KvWorkerSaid(NamedTuple):
    """The messages of one turn of a worker."""

    stream: KvWorkerStream
    epoch: Epoch
    messages: Sequence[Applied | Done]


class KvWorkerLeft(NamedTuple):
    """The stream ended."""

    stream: KvWorkerStream


Inbound = (
    SchedulerArrived
    | SchedulerSaid
    | SchedulerBroke
    | SchedulerLeft
    | KvWorkerArrived
    | KvWorkerSaid
    | KvWorkerLeft
    | Wakeup
)
