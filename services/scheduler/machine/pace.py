"""How long iterations take here, compared with the cost model: a number that policies multiply its seconds by.

A profile is measured alone, on an idle machine. In service an iteration also waits for copies, messages and whoever
shares the worker's cores, and takes up to some times as long. Seconds that are compared with each other do not mind;
those that are compared with a clock do. So from time to time the time from one result to the next, or from the plan to
its result where the worker was idle before, is set against what the model says of that batch. Of results that come
together each took an equal part of the time.
"""

from collections.abc import Sequence

from services.domain.cost import CostProfile
from services.domain.protocol import PlanEntry

EVERY = 8
"""One iteration of so many is looked at: the model's answer costs some microseconds."""
LEAST_LOOKS = 16
"""Before so many the model is taken at its word."""
MOST_LOOKS = 64
"""Looks over which the mean is taken, once there are as many: about a thousand iterations."""
NEAR = 1.25
"""A model that is off by less is taken at its word, too: profiles are no better than that."""
LEAST, MOST = 0.25, 16.0


class Pace:
    """Counts iterations of one worker; a new worker begins anew."""

    def __init__(self) -> None:
        self._profile: CostProfile | None = None
        self._stages = 1
        self._finished = 0
        self._looks = 0
        self._before_s = self._last_result_s = 0.0
        """The times of the last result, and of the last that came before it and not with it."""
        self._took_s = self._modelled_s = 0.0
        self.factor = 1.0
        """An iteration takes so many times as long as the model says."""

    def calibrate(self, profile: CostProfile, stage_count: int) -> None:
        """A worker joined, whose stages run an iteration each at a time."""
        self._profile, self._stages = profile, stage_count
        self._finished = self._looks = 0
        self._before_s = self._last_result_s = self._took_s = self._modelled_s = 0.0
        self.factor = 1.0

    def finished(self, entries: Sequence[PlanEntry], made_s: float, now_s: float, together: int) -> bool:
        """The result of a plan came that was made at `made_s`, one of so many together. Returns whether `factor` may
        have changed.
        """
        if together == 1 or now_s > self._last_result_s:
            self._before_s, self._last_result_s = self._last_result_s, now_s
        took_s = (now_s - max(self._before_s, made_s)) / together
        self._finished += 1
        if self._finished % EVERY:
            return False
        assert self._profile is not None, "calibrate must be called first"
        contexts = [entry.from_token for entry in entries if entry.to_token - entry.from_token == 1]
        prefills = [(from_token, to_token) for _, from_token, to_token in entries if to_token - from_token > 1]
        context_tokens = sum(contexts) / len(contexts) if contexts else 0.0
        self._looks += 1
        left = 1.0 - 1.0 / min(self._looks, MOST_LOOKS)
        self._took_s = left * self._took_s + took_s
        modelled_s = self._profile.iteration_s(prefills, len(contexts), context_tokens) / self._stages
        self._modelled_s = left * self._modelled_s + modelled_s
        if self._looks < LEAST_LOOKS:
            return False
        factor = self._took_s / self._modelled_s
        self.factor = 1.0 if 1.0 / NEAR <= factor <= NEAR else min(max(factor, LEAST), MOST)
        return True
