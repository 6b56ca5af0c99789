"""The interface of KV policies (PAPER 3): how many blocks a job gets, whether they may be taken from another job, and
what is done ahead of need.
"""

from typing import NamedTuple, Protocol


class ReserveFacts(NamedTuple):
    """What the size of the idle reserve depends on. `arrival_blocks`: average number of blocks of a recent arrival's
    first iteration.
    """

    device_blocks: int
    arrival_blocks: float
    jobs_in_burst_levels: int


class KvPolicy(Protocol):
    """Decides how blocks are given and reclaimed."""

    @property
    def name(self) -> str:
        """The value of `--kv-policy`."""

    @property
    def reclaims(self) -> bool:
        """Whether blocks may be taken from a lower job for a job that would run now."""

    @property
    def keeps_kv(self) -> bool:
        """Whether a job's KV is moved to the host when its blocks are taken, rather than dropped."""

    @property
    def uploads_ahead(self) -> bool:
        """Whether jobs are uploaded from the host before they would run."""

    def tokens_at_once(self, next_tokens: int, most_tokens: int) -> int:
        """Tokens that a job's first blocks must hold, if its next iteration ends at `next_tokens` and its KV may grow
        to `most_tokens`.
        """

    def reserve_blocks(self, facts: ReserveFacts) -> int:
        """Device blocks to keep idle."""
