"""What operators see of the machine: counts by level, from one walk over the jobs."""

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.domain.ids import JobId
from services.scheduler.policy.counters import Counters
from services.scheduler.policy.job import JobState

if TYPE_CHECKING:
    from services.scheduler.policy.machine import Scheduler


@dataclass(frozen=True, slots=True)
class LevelCount:
    """Jobs of one level; each is counted once. `quantum_s` is 0 for a policy without quanta."""

    level: int
    quantum_s: float
    running: int
    waiting: int
    swapped_out: int


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot. `counters` goes on counting."""

    ready: bool
    levels: tuple[LevelCount, ...]
    counters: Counters
    queued_tokens: int

    @property
    def running(self) -> int:
        """Jobs in a plan under way."""
        return sum(level.running for level in self.levels)

    @property
    def waiting(self) -> int:
        """Jobs neither running nor swapped out."""
        return sum(level.waiting for level in self.levels)

    @property
    def swapped_out(self) -> int:
        """Jobs whose KV is in host memory or on its way there."""
        return sum(level.swapped_out for level in self.levels)


def status_of(scheduler: "Scheduler", swapped_out: Container[JobId]) -> Status:
    """Ended jobs are not counted. The scheduler does not know where KV is that is not resident: `swapped_out` comes
    from the KV manager.
    """
    quanta_s = scheduler.policy.quanta_s or (0.0,)
    running, waiting, swapped = ([0] * len(quanta_s) for _ in range(3))
    for job in scheduler.jobs.values():
        if job.state is JobState.CLOSING:
            continue
        is_swapped = job.state is JobState.OUT and job.job in swapped_out
        kind = running if job.in_flight else swapped if is_swapped else waiting
        kind[min(job.place.level, len(quanta_s) - 1)] += 1
    return Status(
        ready=scheduler.linked,
        levels=tuple(
            LevelCount(level, quantum_s, running[level], waiting[level], swapped[level])
            for level, quantum_s in enumerate(quanta_s)
        ),
        counters=scheduler.counters,
        queued_tokens=scheduler.admission.queued_tokens,
    )
