"""Results that wait for those of the plans behind them, and travel with them as one message.

Where iterations are short the scheduler plans several ahead (services.scheduler.machine.plan_lead), and to both ends a
message costs more than what is in it, because it wakes threads on cores that compute. So a result waits while more
plans are at hand than results wait: half of the plans are then left for the way to the scheduler and back. It waits
for about HOLD_LIMIT_S, and not at all if somebody waits for it: after a prefill, a first token; with the end of a
sequence or an entry that was passed over, a place in the batch.

With two plans in flight no result ever waits.
"""

import time
from collections.abc import Callable, Sequence

from services.domain.iteration import Plan, WorkerResult

HOLD_LIMIT_S = 0.05
CALL_LIMIT_S = 0.025
"""Plans that are run in one call take about so long at most: what is in it can't be recalled."""


class HeldResults:
    """`say` gets what goes, in order. Used on the stepping thread."""

    def __init__(
        self, say: Callable[[Sequence[WorkerResult]], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._say = say
        self._clock = clock
        self._held: list[WorkerResult] = []
        self._since_s = 0.0
        self._iteration_s = 0.0

    def room(self, plans_at_hand: int) -> int:
        """How many of the plans at hand may be run together with one that is begun now, so that results are not late
        and half of the plans are left when these go.
        """
        held_s = self._clock() - self._since_s if self._held else 0.0
        limit_s = min(HOLD_LIMIT_S - held_s, CALL_LIMIT_S)
        in_time = int(limit_s / self._iteration_s) if self._iteration_s > 0.0 else 0
        return max(0, min((plans_at_hand - len(self._held)) // 2, in_time - 1))

    def begin(self, plan: Plan) -> None:
        """The plan will be run now: nobody waits for the end of a prefill."""
        if self._held and _has_prefill(plan):
            self._flush()

    def add(self, plans: Sequence[Plan], results: Sequence[WorkerResult], plans_at_hand: int) -> None:
        """The plans have been run, in one call; so many more are at hand."""
        held = self._held
        now_s = self._clock()
        last_s = results[-1].result.duration_s
        if not held:
            self._since_s = now_s - sum(result.result.duration_s for result in results[1:])
        held += results
        self._iteration_s = last_s
        # The next one is there in as long as this one took.
        is_late = now_s + last_s - self._since_s > HOLD_LIMIT_S
        awaited = any(_is_awaited(plan, result) for plan, result in zip(plans, results, strict=True))
        if len(held) >= plans_at_hand or is_late or awaited:
            self._flush()

    def drop(self) -> None:
        """Forget what waits: its epoch is over."""
        self._held = []

    def _flush(self) -> None:
        held, self._held = self._held, []
        self._say(held)


def _is_awaited(plan: Plan, result: WorkerResult) -> bool:
    made = result.result
    return (
        bool(made.cut_job_ids or result.failures)
        or any(token.end_of_sequence for token in made.tokens)
        or _has_prefill(plan)
    )


def _has_prefill(plan: Plan) -> bool:
    return any(entry.to_token - entry.from_token > 1 for entry in plan.entries)
