"""The scheduler's counters since it started."""

from bisect import bisect_left
from dataclasses import dataclass, field

from services.domain.generation import EndReason
from services.domain.server_status import ITERATION_TOKEN_BOUNDS, IterationTokens


@dataclass(slots=True)
class SchedulerCounters:
    """Defined like `Counters` and `Status` in admin.proto. `rejections` are by reason, `ended` by end reason."""

    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0
    iterations: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    jobs_admitted: int = 0
    jobs_finished: int = 0
    moves: int = 0
    worker_joins: int = 0
    rejections: dict[str, int] = field(default_factory=dict)
    ended: dict[EndReason, int] = field(default_factory=lambda: dict.fromkeys(EndReason, 0))
    iteration_token_counts: list[int] = field(default_factory=lambda: [0] * (len(ITERATION_TOKEN_BOUNDS) + 1))
    iteration_token_sum: int = 0

    def iteration(self, tokens: int) -> None:
        """An iteration ended with this many tokens, prefill and decode together."""
        self.iterations += 1
        self.iteration_token_counts[bisect_left(ITERATION_TOKEN_BOUNDS, tokens)] += 1
        self.iteration_token_sum += tokens

    @property
    def iteration_tokens(self) -> IterationTokens:
        """The present histogram."""
        return IterationTokens(counts=tuple(self.iteration_token_counts), sum=self.iteration_token_sum)

    def reject(self, reason: str) -> None:
        self.rejections[reason] = self.rejections.get(reason, 0) + 1
