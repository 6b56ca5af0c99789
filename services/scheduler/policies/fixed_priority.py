"""Fixed priority: shortest prompt first, never changed (PAPER 2).

A baseline of the papers: prompt length says nothing about output length, so a long answer to a short prompt still
blocks the others.
"""

from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.without_levels import WithoutLevels


class FixedPriority(WithoutLevels):
    """Ranks jobs by prompt length."""

    def join(self, job: Job) -> Rank:
        """A shorter prompt runs sooner."""
        return Rank(0, float(job.prompt_tokens), job.arrival_number)
