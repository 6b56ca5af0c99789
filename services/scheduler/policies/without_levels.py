"""The common base of policies without quanta: jobs are not promoted or cut, and do not move because of others."""

from collections.abc import Sequence

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.length_distribution import LengthDistribution
from services.scheduler.policies.scheduling_policy import UNKNOWN_WORK


class WithoutLevels:
    """Defaults for a policy without quanta; a subclass defines at least `join`."""

    quanta_s: tuple[float, ...] = ()
    closed_level: int | None = None
    displaces = True
    lends = False
    work = UNKNOWN_WORK

    @property
    def lengths(self) -> LengthDistribution | None:
        """It learns no lengths."""
        return None

    def join(self, job: Job) -> Rank:
        """The place of a new job. In a subclass that leaves `foresee` as it is, this depends on the job alone."""
        raise NotImplementedError

    def rejoin(self, job: Job, level: int) -> Rank:
        """As if it were new: its arrival and its tokens say where it belongs."""
        return self.join(job)

    def foresee(self, job: Job, level: int | None) -> Rank:
        return self.join(job)

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """The cost model is not used."""

    def paced(self, factor: float) -> None:
        """No seconds are compared with a clock."""

    def ran(self, job: Job, service_s: float) -> Rank | None:
        return None

    def cut(self, job: Job) -> Rank:
        """Nothing is ever cut; if a worker claims so, the job keeps its place."""
        return job.place

    def cut_after_s(self, job: Job, tokens: int) -> float | None:
        return None

    def promote(self, job: Job) -> Rank | None:
        return None

    def residency_changed(self, job: Job) -> Rank | None:
        return None

    def leave(self, job: Job, reason: EndReason) -> None:
        """Nothing to do: the policy keeps no list of jobs."""

    def state_key(self) -> tuple[object, ...]:
        return ()

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        return ()
