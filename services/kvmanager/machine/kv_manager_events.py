"""The events that the KV manager's machine takes, and the commands that it returns."""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.ids import Epoch, JobId
from services.domain.protocol import KvToScheduler, KvToWorker, SchedulerToKv, WorkerToKv


@dataclass(frozen=True, slots=True)
class SchedulerConnected:
    """A stream of the scheduler opened. Jobs will follow on it."""


@dataclass(frozen=True, slots=True)
class SchedulerLost:
    """The scheduler's stream ended. All that it sent is void, and so is the worker's KV, because it is not known any
    more which plans have written to it.
    """


class FromScheduler(NamedTuple):
    """A message from the scheduler about a worker epoch."""

    epoch: Epoch
    message: SchedulerToKv


class FromWorker(NamedTuple):
    """A message from the worker of this epoch."""

    epoch: Epoch
    message: WorkerToKv


class KvWorkerLost(NamedTuple):
    """The stream of the worker of this epoch ended, and the epoch with it."""

    epoch: Epoch


Event = SchedulerConnected | SchedulerLost | FromScheduler | FromWorker | KvWorkerLost


class ToScheduler(NamedTuple):
    """Send to the scheduler."""

    epoch: Epoch
    message: KvToScheduler


class ToWorker(NamedTuple):
    """Send to the worker."""

    epoch: Epoch
    message: KvToWorker


class EndWorker(NamedTuple):
    """End the worker's streams of this epoch, so that it begins a new epoch with empty tables."""

    epoch: Epoch


Command = ToScheduler | ToWorker | EndWorker


class Swaps(NamedTuple):
    """Jobs that went from the device to the host, and jobs that came back or ended, since the last call of
    `take_swaps`.
    """

    out_job_ids: tuple[JobId, ...]
    back_job_ids: tuple[JobId, ...]
