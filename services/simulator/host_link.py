"""The link between device and host memory, beside compute.

A copy takes its latency and its bytes at the link's bandwidth. A direction moves one copy after another, in the order
in which they were asked for; both directions move at once, if the link is duplex. When a copy ends is known as soon
as it is asked for, because nothing that comes later can overtake it.

Every stage has such a link and gets the same commands at the same time for an equal share of the bytes, so one link
tells for all of them.
"""

from services.domain.copying import CopyDirection, LinkSpeed
from services.simulator.time_spans import TimeSpan


class HostLink:
    """When copies end, and what was copied."""

    def __init__(self, link: LinkSpeed, stage_block_bytes: float) -> None:
        self._link = link
        self._stage_block_bytes = stage_block_bytes
        self._free_s = [0.0, 0.0]
        self.copied_blocks = [0, 0]
        """By direction."""
        self.spans: list[TimeSpan] = []
        """When a copy ran."""

    def copy(self, direction: CopyDirection, blocks: int, now_s: float) -> float:
        """Start a copy of so many blocks. Returns when it ends."""
        way = direction if self._link.duplex else 0
        begin_s = max(now_s, self._free_s[way])
        end_s = self._free_s[way] = begin_s + self._link.copy_s(blocks * self._stage_block_bytes)
        self.copied_blocks[direction] += blocks
        self.spans.append(TimeSpan(begin_s, end_s))
        return end_s
