"""What the KV policies differ in (PAPER 3): how many blocks a job gets, from whom they are taken, and what is done
ahead of need.
"""

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
