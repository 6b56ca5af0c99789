"""What all policies without quanta have in common: nobody is promoted, nothing is cut, nobody moves on account of
others.
"""

from collections.abc import Sequence

from services.domain.cost import CostProfile
from services.domain.protocol import Rank
from services.scheduler.job import Job


class WithoutLevels:
    """A policy without quanta says nothing of its own to these; a subclass says at least where a job joins."""

    quanta_s: tuple[float, ...] = ()
    closed_level: int | None = None

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Times play no part."""

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """A job keeps its place."""
        return None

    def cut(self, job: Job) -> Rank:
        """Nothing is ever cut; a worker that says so changes no place."""
        return job.place

    def cut_after_s(self, job: Job, tokens: int) -> float | None:
        """Nothing is cut."""
        return None

    def promote(self, job: Job) -> Rank | None:
        """Nobody is promoted."""
        return None

    def leave(self, job: Job) -> None:
        """Nothing is held."""

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """Nobody moves on account of others."""
        return ()
