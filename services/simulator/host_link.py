"""The link between device and host memory, which works in parallel with compute.

A copy takes the link's latency plus the time of its bytes at the link's bandwidth. Each direction makes one copy after
another, in the order of the requests; if the link is duplex, both directions work at once. The end of a copy is known
when it is requested, because no later copy can overtake it.

Every stage has such a link and gets the same commands at the same time for an equal share of the bytes, so modelling
one link is enough.
"""

from services.domain.copying import CopyDirection, LinkSpeed
from services.simulator.time_spans import TimeSpan


class HostLink:
    """Computes when copies end, and records them."""

    def __init__(self, link: LinkSpeed, stage_block_bytes: float) -> None:
        self._link = link
        self._stage_block_bytes = stage_block_bytes
        self._free_s = [0.0, 0.0]
        self.copied_blocks = [0, 0]
        """Blocks copied, by direction."""
        self.spans: list[TimeSpan] = []
        """When copies ran."""

    def copy(self, direction: CopyDirection, blocks: int, now_s: float) -> float:
        """Start a copy of `blocks` blocks. Returns the time of its end."""
        way = direction if self._link.duplex else 0
        begin_s = max(now_s, self._free_s[way])
        end_s = self._free_s[way] = begin_s + self._link.copy_s(blocks * self._stage_block_bytes)
        self.copied_blocks[direction] += blocks
        self.spans.append(TimeSpan(begin_s, end_s))
        return end_s
