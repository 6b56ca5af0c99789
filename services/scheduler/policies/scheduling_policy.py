"""What every scheduling policy decides: a place for each job.

A place is Rank(level, key, arrival number); the smaller runs sooner. A policy is asked when a job joins, when an
iteration with the job ended (`service_s` is what that iteration is charged), and when the starvation limit promotes the
job. It holds no list of jobs: the machine keeps them sorted by place, so that a decision costs no walk over the queue.
"""

from collections.abc import Sequence
from typing import Protocol

from services.domain.cost import CostProfile
from services.domain.protocol import Rank
from services.scheduler.job import Job


class SchedulingPolicy(Protocol):
    """Decides ranks. All methods cost O(1), `settle` O(jobs it moves)."""

    quanta_s: tuple[float, ...]
    """Quantum of each level, highest level first; empty without quanta."""
    closed_level: int | None
    """Jobs of this level and below are not planned."""

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """A worker joined: take its cost model. So many batches run at a time. Called before any other method."""

    def join(self, job: Job) -> Rank:
        """Place of a new job."""

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """New place of a job that was in an iteration and goes on; None: it keeps its place."""

    def cut(self, job: Job) -> Rank:
        """Place of a job whose prefill was cut."""

    def cut_after_s(self, job: Job, tokens: int) -> float | None:
        """How long a prefill of so many tokens may run before it is cut; None: to its end."""

    def promote(self, job: Job) -> Rank | None:
        """Place of a job that waited for the starvation limit; None: it can't get a better one."""

    def leave(self, job: Job) -> None:
        """The job ended."""

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """New places, once all events of a turn were taken."""
