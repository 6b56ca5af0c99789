"""`recompute` and `reactive`: blocks are given as they are needed, and the lowest job gives them up for a higher one
(PAPER 3).

Under `recompute` its KV cache is dropped and made again later. Under `reactive` it goes to the host and comes back, but
only when room is missing, so the copies are on the critical path.
"""

from dataclasses import dataclass

from services.kvmanager.policies.kv_policy import ReserveFacts


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Take blocks when a job that would run now lacks them; `keeps_kv` tells reactive from recompute."""

    name: str
    keeps_kv: bool
    reclaims: bool = True
    uploads_ahead: bool = False

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        return next_tokens

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        return 0
