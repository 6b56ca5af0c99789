"""What the streams tell the driver."""

from collections.abc import Sequence
from typing import NamedTuple

from services.domain.ids import Epoch
from services.domain.protocol import Applied, Done, SchedulerToKv
from services.domain.work import KvWorkerFacts
from services.kvmanager.peers import SchedulerPeer, WorkerPeer


class SchedulerArrived(NamedTuple):
    """A stream of the scheduler opened."""

    peer: SchedulerPeer


class SchedulerSaid(NamedTuple):
    """One turn of the scheduler."""

    peer: SchedulerPeer
    epoch: Epoch
    messages: Sequence[SchedulerToKv]


class SchedulerLeft(NamedTuple):
    """The stream ended."""

    peer: SchedulerPeer


class WorkerArrived(NamedTuple):
    """A stage of a worker said hello."""

    peer: WorkerPeer
    facts: KvWorkerFacts


class WorkerSaid(NamedTuple):
    """One turn of a worker's stage."""

    peer: WorkerPeer
    epoch: Epoch
    messages: Sequence[Applied | Done]


class WorkerLeft(NamedTuple):
    """The stream ended."""

    peer: WorkerPeer


class Nudge(NamedTuple):
    """Time has passed."""


Inbound = SchedulerArrived | SchedulerSaid | SchedulerLeft | WorkerArrived | WorkerSaid | WorkerLeft | Nudge
