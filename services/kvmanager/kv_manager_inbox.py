"""What the streams tell the driver."""

from collections.abc import Sequence
from typing import NamedTuple

from services.domain.ids import Epoch
from services.domain.protocol import Applied, Done, SchedulerToKv
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.kv_streams import KvWorkerStream, SchedulerStream


class SchedulerArrived(NamedTuple):
    """A stream of the scheduler opened."""

    peer: SchedulerStream


class SchedulerSaid(NamedTuple):
    """One turn of the scheduler."""

    peer: SchedulerStream
    epoch: Epoch
    messages: Sequence[SchedulerToKv]


class SchedulerLeft(NamedTuple):
    """The stream ended."""

    peer: SchedulerStream


class KvWorkerArrived(NamedTuple):
    """A stage of a worker said hello."""

    peer: KvWorkerStream
    facts: KvWorkerFacts


class KvWorkerSaid(NamedTuple):
    """One turn of a worker's stage."""

    peer: KvWorkerStream
    epoch: Epoch
    messages: Sequence[Applied | Done]


class KvWorkerLeft(NamedTuple):
    """The stream ended."""

    peer: KvWorkerStream


class Nudge(NamedTuple):
    """Time has passed."""


Inbound = SchedulerArrived | SchedulerSaid | SchedulerLeft | KvWorkerArrived | KvWorkerSaid | KvWorkerLeft | Nudge
