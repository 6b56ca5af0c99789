"""Multi-level feedback queues: skip-join (FastServe), naive, and killing (PAPER 2).

MLFQ approximates least attained service without knowing job lengths. Levels have quanta q1 < q2 < ..., each
`quantum_ratio` times the previous one. q1 is the smallest iteration time, and there are as many levels as it takes for
the last quantum to exceed the longest prefill (PAPER 2, v3). Within a level jobs are ordered by when they joined it:
the key is a number that rises with every join. A job that stays in its level keeps its place.

- skip-join: a job joins the first level whose quantum covers its first iteration, as predicted by the cost model; the
levels above are skipped.
- naive: every job joins the first level; a prefill longer than the quantum runs to its end, and the job is demoted
after it.
- kill: like naive, but the prefill is cut when the quantum ends, and all its work is lost. In the last level nothing is
cut, otherwise the prefill would never end.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.scheduling_policy import UNKNOWN_WORK

MOST_LEVELS = 64


def quanta(profile: CostProfile, max_model_len: int, ratio: float) -> tuple[float, ...]:
    """Quanta in seconds: q1 is the smallest iteration time, the last one exceeds the longest prefill (PAPER 2, v3)."""
    longest_prefill_s = profile.prefill_s(max_model_len)
    result = [profile.smallest_iteration_s]
    while result[-1] <= longest_prefill_s and len(result) < MOST_LEVELS:
        result.append(result[-1] * ratio)
    return tuple(result)


class Mlfq:
    """Skip-join, naive, and killing MLFQ: see the module's docstring."""

    def __init__(self, *, quantum_ratio: float, demotion_levels: int, skip_join: bool, kill: bool) -> None:
        self.quanta_s: tuple[float, ...] = ()
        self.closed_level: int | None = None
        self.displaces = True
        self.lends = False
        self.work = UNKNOWN_WORK
        self.lengths = None
        self._ratio = quantum_ratio
        self._demotion_levels = demotion_levels
        self._skip_join = skip_join
        self._kill = kill
        self._profile: CostProfile | None = None
        self._joins = 0

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Compute the quanta from the measured profile."""
        self._profile = profile
        self.quanta_s = quanta(profile, max_model_len, self._ratio)

    def join(self, job: Job) -> Rank:
        """The tail of the first level. With skip-join, the tail of the first level whose quantum covers the first
        iteration, or of the last level if there is none.
        """
        job.service_s = 0.0
        return self._tail(self._first_level(job), job)

    def rejoin(self, job: Job, level: int) -> Rank:
        """The tail of the level that it had, with the service received there."""
        return self._tail(min(level, len(self.quanta_s) - 1), job)

    def foresee(self, job: Job, level: int | None) -> Rank:
        level = self._first_level(job) if level is None else min(level, len(self.quanta_s) - 1)
        return Rank(level, inf, job.arrival_number)

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """Demoted to the tail of a lower level, with its service counter reset, when its service at this level reaches
        the quantum (PAPER 2).
        """
        received_s = job.service_s = job.service_s + service_s
        return None if received_s < self.quanta_s[job.place.level] else self._demoted(job)

    def cut(self, job: Job) -> Rank:
        """A cut means that the quantum is used up, whatever the clock says: the job is demoted, so that it can't be cut
        at this level forever.
        """
        return self._demoted(job) or job.place

    def cut_after_s(self, job: Job, tokens: int) -> float | None:
        """The rest of the quantum, if the predicted prefill exceeds it and there is a lower level. The iteration that a
        promotion guarantees is not cut.
        """
        level = job.place.level
        if not self._kill or job.promoted or level == len(self.quanta_s) - 1:
            return None
        rest_s = self.quanta_s[level] - job.service_s
        return rest_s if self._prefill_s(tokens) > rest_s else None

    def promote(self, job: Job) -> Rank | None:
        """The tail of the first level, with its service counter reset; the job can't be demoted before an iteration
        with it has ended (PAPER 2, step 3).
        """
        if job.place.level == 0:
            return None
        job.service_s = 0.0
        return self._tail(0, job)

    def paced(self, factor: float) -> None:
        """Jobs are charged what iterations took."""

    def residency_changed(self, job: Job) -> Rank | None:
        """Where its KV is does not count."""
        return None

    def leave(self, job: Job, reason: EndReason) -> None:
        """Nothing to do: the policy keeps no list of jobs."""

    def state_key(self) -> tuple[object, ...]:
        """The number of joins only grows, and the order of the jobs says what it says."""
        return ()

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """No job moves because of others."""
        return ()

    def _first_level(self, job: Job) -> int:
        if not self._skip_join:
            return 0
        return min(bisect_left(self.quanta_s, self._prefill_s(job.known_tokens)), len(self.quanta_s) - 1)

    def _demoted(self, job: Job) -> Rank | None:
        """The tail of the level below; None in the last level, where the job keeps its place."""
        job.service_s = 0.0
        present = job.place.level
        level = min(present + self._demotion_levels, len(self.quanta_s) - 1)
        return None if level == present else self._tail(level, job)

    def _tail(self, level: int, job: Job) -> Rank:
        self._joins += 1
        return Rank(level, float(self._joins), job.arrival_number)

    def _prefill_s(self, tokens: int) -> float:
        assert self._profile is not None, "calibrate must be called first"
        return self._profile.prefill_s(tokens)
