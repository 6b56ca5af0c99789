"""`defer`: a job waits until it can get blocks for its prompt and for all tokens that it may make; blocks are never
taken from a job (Orca's reservation; PAPER 3).
"""

from dataclasses import dataclass

from services.kvmanager.policies.kv_policy import ReserveFacts


@dataclass(frozen=True, slots=True)
class Defer:
    """Admits no further job when the pool is full."""

    name: str = "defer"
    reclaims: bool = False
    keeps_kv: bool = False
    uploads_ahead: bool = False

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        return max(next_tokens, most_tokens)

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        return 0
