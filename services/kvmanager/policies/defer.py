"""`defer`: a job gets blocks for its prompt and for all tokens that it may make, or waits; nothing is ever taken from a
job (Orca's reservation; PAPER 3).
"""

from dataclasses import dataclass

from services.kvmanager.policies.kv_policy import ReserveFacts


@dataclass(frozen=True, slots=True)
class Defer:
    """Stop admitting when the pool is full."""

    name: str = "defer"
    reclaims: bool = False
    keeps_kv: bool = False
    uploads_ahead: bool = False

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        return max(next_tokens, most_tokens)

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        return 0
