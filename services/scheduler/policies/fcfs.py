"""First come, first served: in the order of arrival, run to completion (as in Orca and vLLM; PAPER 2)."""

from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.without_levels import WithoutLevels


class Fcfs(WithoutLevels):
    """Ranks jobs by arrival."""

    displaces = False

    def join(self, job: Job) -> Rank:
        """Behind all earlier jobs, also those that came to another scheduler before this one led."""
        return Rank(0, job.arrived_s, job.arrival_number)
