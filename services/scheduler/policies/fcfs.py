"""First come, first served: by arrival, run to completion (Orca's order, and vLLM's; PAPER 2)."""

from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.without_levels import WithoutLevels


class Fcfs(WithoutLevels):
    """By arrival."""

    def join(self, job: Job) -> Rank:
        """Behind everybody who came before."""
        return Rank(0, 0.0, job.arrival_number)
