"""How many jobs an iteration may have: as many as `--max-batch` says, or, where it says nothing, as is best by the
worker's measured profile.

The jobs of an iteration share one reading of the weights. So a larger batch makes more tokens a second, until the
products take longer than the reading; from there on it makes no more, and each job's come later. Still it takes fewer
iterations for the same tokens, each of which costs the services something, and more jobs have their first token. So the
largest batch is best that makes nearly as many tokens a second as any, and makes every job's within the limit on later
tokens. Where that is small, because the model is large for its processor, the papers' batch stays.
"""

from math import inf

from services.domain.cost import CostProfile
from services.scheduler.scheduler_config import SchedulerConfig

NEARLY_ALL = 0.9
"""Share of the most tokens a second, which are measured to some per cent."""
USUAL_CONTEXT_TOKENS = 256
"""Context for which batches are compared, and how much of the pool a job is thought to need."""


class BatchLimit:
    """The most jobs of an iteration, the same for all parts of a machine."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.jobs = self._least = config.max_batch
        self._is_chosen = config.chooses_batch
        self._most_jobs = config.max_batch_tokens
        self._iteration_limit_s = inf if config.per_token_limit_s is None else config.per_token_limit_s

    def calibrate(self, profile: CostProfile, device_pool_tokens: int) -> None:
        """A worker joined, with this cost model and room for so many tokens of KV."""
        if self._is_chosen:
            most = min(self._most_jobs, device_pool_tokens // USUAL_CONTEXT_TOKENS)
            self.jobs = max(self._least, min(most, best_batch(profile, self._iteration_limit_s)))


def best_batch(profile: CostProfile, iteration_limit_s: float) -> int:
    """The largest measured batch that makes NEARLY_ALL of the most tokens a second, of those whose iterations take at
    most `iteration_limit_s`; 1 if none does.
    """
    measured = {point.batch for point in profile.decode}
    seconds = {batch: profile.decode_s(batch, USUAL_CONTEXT_TOKENS) for batch in measured}
    rates = {batch: batch / taken_s for batch, taken_s in seconds.items() if taken_s <= iteration_limit_s}
    enough = NEARLY_ALL * max(rates.values(), default=0.0)
    return max((batch for batch, rate in rates.items() if rate >= enough), default=1)
