"""The KV policies (PAPER 3, DESIGN 4), behind one interface, and the knobs they share.

- `defer`: a job gets blocks for its prompt and all tokens that it may make (Orca's reservation) or waits; nothing is
  ever taken from a job.
- `recompute`: blocks are given as they are needed; the lowest job gives them up for a higher one, its KV cache is
  dropped and made again later.
- `reactive`: as recompute, but the KV cache goes to the host and comes back: only when room is missing, so on the
  critical path.
- `proactive`: as reactive, and a reserve of device blocks is kept idle for arrivals by offloading ahead of need,
  while jobs that run soon are uploaded ahead of need where there is room above it.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol


class ReserveFacts(NamedTuple):
    """What the size of the idle reserve depends on. `arrival_blocks`: those of a recent arrival's first iteration, on
    average.
    """

    device_blocks: int
    arrival_blocks: float
    jobs_in_burst_levels: int


class KvPolicy(Protocol):
    """What the policies differ in."""

    @property
    def name(self) -> str:
        """As `--kv-policy` takes it."""

    @property
    def reclaims(self) -> bool:
        """Whether blocks may be taken from a lower job for one that would run now."""

    @property
    def keeps_kv(self) -> bool:
        """Whether a job's KV goes to the host when its blocks are taken, rather than being dropped."""

    @property
    def uploads_ahead(self) -> bool:
        """Whether jobs come back from the host before they would run."""

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        """Tokens that a job's first blocks must hold: its next iteration ends at `next_tokens`, its KV may come to
        hold `most_tokens`.
        """

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        """Device blocks to keep idle."""


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


POLICY_NAMES = ("proactive", "reactive", "recompute", "defer")


@dataclass(frozen=True, slots=True)
class KvConfig:
    """Limits that all policies share.

    lookahead_tokens: L of PROTOCOL rule 16, a job grows when no more than these tokens of its capacity are unplanned.
    grant_blocks: most blocks of one growth while the pool is slack. protected_plans: plans that a job just brought in
    may be passed over before it may be taken from the device again.
    """

    policy: KvPolicy
    burst_levels: int = 2
    lookahead_tokens: int = 4
    grant_blocks: int = 4
    protected_plans: int = 4


def policy_named(name: str, idle_slots: int = 4, largest_share: float = 0.25) -> KvPolicy:
    """The policy that `--kv-policy` names; the name was validated by the settings."""
    if name == "defer":
        return Defer()
    if name == "proactive":
        return Proactive(idle_slots, largest_share)
    return OnDemand(name, keeps_kv=name == "reactive")
