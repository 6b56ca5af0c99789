"""What happens to the KV manager, and what it wants done."""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.ids import Epoch, JobId
from services.domain.protocol import KvToScheduler, KvToWorker, SchedulerToKv, WorkerToKv


@dataclass(frozen=True, slots=True)
class SchedulerConnected:
    """A stream of the scheduler opened. Jobs follows on it."""


@dataclass(frozen=True, slots=True)
class SchedulerLost:
    """The scheduler's stream ended. What it said is void, and so is what the worker holds: nobody knows any more
    which of it was planned.
    """


class FromScheduler(NamedTuple):
    """A message of the scheduler about a worker epoch."""

    epoch: Epoch
    message: SchedulerToKv


class FromWorker(NamedTuple):
    """A message of a worker's stage, of this epoch."""

    epoch: Epoch
    message: WorkerToKv


class StageLost(NamedTuple):
    """The stream of a worker's stage ended: the whole epoch is over."""

    epoch: Epoch
    stage: int


Event = SchedulerConnected | SchedulerLost | FromScheduler | FromWorker | StageLost


class ToScheduler(NamedTuple):
    """Send this to the scheduler."""

    epoch: Epoch
    message: KvToScheduler


class ToWorker(NamedTuple):
    """Send this to every stage of the worker."""

    epoch: Epoch
    message: KvToWorker


class EndWorker(NamedTuple):
    """End the worker's streams of this epoch, so that it begins a new one with empty tables."""

    epoch: Epoch


Command = ToScheduler | ToWorker | EndWorker


class Swaps(NamedTuple):
    """Jobs that left the device for the host, and that came back or ended, since this was last taken."""

    out_job_ids: tuple[JobId, ...]
    back_job_ids: tuple[JobId, ...]
