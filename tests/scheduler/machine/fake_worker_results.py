"""The results of a worker that takes the time the cost model says, without streams."""

from services.domain.cost import CostProfile
from services.domain.ids import JobId
from services.domain.protocol import IterationResult, SampledToken
from services.scheduler.machine.scheduler_events import (
    SendPlan,
)
from tests.scheduler.machine.checked_scheduler import TOKEN


class FakeWorkerResults:
    """Runs plans one after another, each for the sum of its prefills and one decode. Cuts a prefill that has a limit
    below its time.
    """

    def __init__(self, cost: CostProfile) -> None:
        self._cost = cost
        self.known: dict[str, int] = {}

    def run(self, plan: SendPlan) -> IterationResult:
        """The iteration's result, with its duration."""
        limits = dict(plan.cut_after_s)
        duration_s = 0.0
        cut: list[JobId] = []
        tokens: list[SampledToken] = []
        for entry in plan.entries:
            count = entry.to_token - entry.from_token
            before_s = self._cost.prefill_s(entry.from_token) if entry.from_token else 0.0
            prefill_s = self._cost.prefill_s(entry.to_token) - before_s
            if count > 1 and prefill_s > limits.get(entry.job_id, prefill_s):
                duration_s += limits[entry.job_id]
                cut.append(entry.job_id)
                continue
            duration_s += prefill_s if count > 1 else 0.0
            if entry.to_token == self.known[entry.job_id]:
                self.known[entry.job_id] += 1
                tokens.append(SampledToken(entry.job_id, TOKEN, False))
        if any(entry.to_token - entry.from_token == 1 for entry in plan.entries):
            duration_s += self._cost.decode_s(len(plan.entries), 1)
        return IterationResult(plan.epoch, plan.plan_number, tuple(tokens), tuple(cut), duration_s)
