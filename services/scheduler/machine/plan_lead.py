"""How many plans may be under way at once.

One on each stage of the worker, and one that waits for the first: then the worker finds its next plan when it has ended
one, and who runs is decided after every iteration. Where iterations take less time than the messages about them, as
with a small model, the worker waits for plans, and the services take more of the processor than the model does. So for
a job that is alone more are planned ahead, if an iteration takes less than half of LEAD_S; their plans and results
travel together. Nobody else is there who could run. One that arrives then waits for what was planned ahead: LEAD_S,
which one iteration of a large model takes, too.

`--plans-in-flight` plans as many ahead for any number of jobs. That makes a small model faster where processors are
scarce, and lets the place of a job that ended early stay empty for as many iterations.
"""

LEAD_S = 0.02
"""Of compute, in iterations of average length that are planned and have not ended."""
MOST_AHEAD = 8
"""Plans, however short: an end of sequence is seen so many iterations late at most."""
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

    def calibrate(self, stage_count: int) -> None:
        """A worker of so many pipeline stages joined."""
        self._stages, self._iteration_s = stage_count, 0.0

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

    @property
    def most(self) -> int:
        """So many may be."""
        if not self.looks_ahead or self._iteration_s == 0.0:
            return self.least
        return max(self.least, min(MOST_AHEAD, int(LEAD_S / self._iteration_s)))
