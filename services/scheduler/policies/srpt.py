"""Shortest remaining processing time first (PAPER 2).

An oracle: it takes max_tokens as the length of the output, which is correct only where the output is forced to that
length.
"""

from services.domain.cost import CostProfile
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.without_levels import WithoutLevels


class Srpt(WithoutLevels):
    """Ranks jobs by remaining time: the rest of the prefill, and one decode of a job alone for each output token after
    the next one.
    """

    def __init__(self) -> None:
        self._profile: CostProfile | None = None
        self._decode_s = 0.0

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Take the seconds of prefills and decodes from the profile."""
        self._profile = profile
        self._decode_s = profile.decode_s(1, 1)

    def join(self, job: Job) -> Rank:
        return self._rank(job)

    def ran(self, job: Job, service_s: float) -> Rank | None:
        return self._rank(job)

    def _rank(self, job: Job) -> Rank:
        assert self._profile is not None, "calibrate must be called first"
        decodes = job.max_tokens - job.output_tokens
        remaining_s = decodes * self._decode_s
        computed = job.finished_tokens
        if job.known_tokens - computed > 1:
            done_s = self._profile.prefill_s(computed) if computed else 0.0
            remaining_s += self._profile.prefill_s(job.known_tokens) - done_s - self._decode_s
        return Rank(0, remaining_s, job.arrival_number)
