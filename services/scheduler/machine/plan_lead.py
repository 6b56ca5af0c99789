"""How many plans may be under way at once.

One on each stage of the worker, and one that waits for the first: then the worker finds its next plan when it has ended
one, and who runs is decided after every iteration. Where iterations take less time than the messages about them, as
with a small model, the worker waits for plans, and the services take more of the processor than the model does. So more
are planned ahead, as many as take LEAD_S, while the batch goes on as it is: all of its jobs can run, and it is full, or
nobody else is there who could join it. Then their plans and results travel together, and the worker computes some in
one call (services.worker.engine.compiled_run). When somebody comes who could join the batch, the plans that have not
been begun are recalled (recalls.py); so who runs is decided as soon as with a shorter lead. Plans that come back were
made for nothing: after a recall the lead is no longer than the time since then, and where somebody comes all the time
hardly any plan is made ahead.

`--plans-in-flight` says how many are under way, whatever they take and whoever waits.
"""

from math import inf

LEAD_S = 0.1
"""Of compute, in iterations of average length that are planned and have not ended."""
MOST_AHEAD = 16
"""Plans, however short."""
MOST_AHEAD_ALONE = 32
"""For a job that is alone no place stays empty that another could have."""
WEIGHT = 1 / 16
"""Of the latest iteration in the average duration."""


class PlanLead:
    """Looks at the iterations of one worker; a new worker begins anew. `fixed` (`--plans-in-flight`) says how many,
    whatever they take.
    """

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._stages = 1
        self._iteration_s = 0.0
        """Average seconds of an iteration's compute; 0: none has ended so far."""
        self._recalled_s = -inf

    def calibrate(self, stage_count: int) -> None:
        """A worker of so many pipeline stages joined."""
        self._stages, self._iteration_s, self._recalled_s = stage_count, 0.0, -inf

    def finished(self, duration_s: float) -> None:
        """An iteration ended; its compute took `duration_s` seconds."""
        if self.looks_ahead:
            weight = WEIGHT if self._iteration_s > 0.0 else 1.0
            self._iteration_s += weight * (duration_s - self._iteration_s)

    @property
    def looks_ahead(self) -> bool:
        """Whether more plans than `least` may be made at all. Stages of a pipeline run plans side by side."""
        return self._fixed is None and self._stages == 1

    @property
    def least(self) -> int:
        """So many plans are under way whenever jobs can run."""
        return self._fixed or self._stages + 1

    def recalled(self, now_s: float) -> None:
        """Plans were recalled."""
        self._recalled_s = now_s

    def most(self, jobs: int, now_s: float) -> int:
        """So many may be, with that many jobs in the system."""
        if not self.looks_ahead or self._iteration_s == 0.0:
            return self.least
        bound = MOST_AHEAD_ALONE if jobs == 1 else MOST_AHEAD
        lead_s = min(LEAD_S, now_s - self._recalled_s)
        return max(self.least, min(bound, int(lead_s / self._iteration_s)))
