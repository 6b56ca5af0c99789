"""`proactive`: like `reactive`, but jobs are offloaded ahead of need to keep a reserve of device blocks idle for
arrivals, and jobs that will run soon are uploaded ahead of need while there is room above the reserve (PAPER 3).
"""

from dataclasses import dataclass
from math import ceil

from services.kvmanager.policies.kv_policy import ReserveFacts


@dataclass(frozen=True, slots=True)
class Proactive:
    """Keeps blocks for max(K, jobs in the top K' levels) arrivals idle, but never more than a share of the pool.

    The paper has no such cap. Without it, a burst of more jobs than the pool holds would move every job that is not
    running to the host.
    """

    idle_slots: int
    largest_share: float
    name: str = "proactive"
    keeps_kv: bool = True
    reclaims: bool = True
    uploads_ahead: bool = True

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        return next_tokens

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        device_blocks, arrival_blocks, jobs_in_burst_levels = facts
        slots = max(self.idle_slots, jobs_in_burst_levels)
        return min(ceil(slots * arrival_blocks), int(device_blocks * self.largest_share))
