"""`recompute` and `reactive`: blocks are given when they are needed, and the lowest job gives them up for a higher one
(PAPER 3).

With `recompute` that job's KV cache is dropped and recomputed later. With `reactive` it is moved to the host and back,
but only when the pool has run out of room, so the copies are on the critical path.
"""

from dataclasses import dataclass

from services.kvmanager.policies.kv_policy import ReserveFacts


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Takes blocks when a job that would run now lacks them. `keeps_kv` distinguishes reactive from recompute."""

    name: str
    keeps_kv: bool
    reclaims: bool = True
    uploads_ahead: bool = False

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        return next_tokens

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        return 0
