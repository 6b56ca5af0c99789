"""`proactive`: as reactive, and a reserve of device blocks is kept idle for arrivals by offloading ahead of need, while
jobs that will run soon are uploaded ahead of need where there is room above the reserve (PAPER 3).
"""

from dataclasses import dataclass
from math import ceil

from services.kvmanager.policies.kv_policy import ReserveFacts


@dataclass(frozen=True, slots=True)
class Proactive:
    """Keep max(K, jobs in the top K' levels) arrivals' worth of blocks idle, but never more than a share of the pool.

    The paper has no such cap; without one a burst of more jobs than the pool holds would send everything to the host
    that does not run now.
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
