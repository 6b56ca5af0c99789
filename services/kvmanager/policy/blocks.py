"""A pool of blocks: which are free.

Ids are handed out lowest first, so that the same history always gives the same ids, and so that what a pool does next
depends on which blocks are free and not on the order in which they became so. Asking for more than there is, and
giving back what is free already, are bugs of the caller.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from services.domain.ids import BlockId


class BlockPool:
    """Blocks 0 to count - 1 of one pool."""

    __slots__ = ("_free", "_is_free", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = [BlockId(block) for block in range(count)]
        self._is_free = bytearray(b"\1") * count

    @property
    def free_count(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` may be called."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` blocks, lowest ids first."""
        assert self.can_allocate(count), f"{count} blocks of {len(self._free)} free ones"
        taken = [heappop(self._free) for _ in range(count)]
        for block in taken:
            self._is_free[block] = 0
        return taken

    def free(self, blocks: Iterable[BlockId]) -> None:
        """Give blocks back."""
        for block in blocks:
            assert not self._is_free[block], f"block {block} is free already"
            self._is_free[block] = 1
            heappush(self._free, block)

    def free_ids(self) -> tuple[BlockId, ...]:
        """The free blocks, ascending."""
        return tuple(sorted(self._free))

    def check(self, used: Iterable[BlockId]) -> None:
        """Assert that `used`, all blocks in anybody's table, and the free ones are each block of the pool exactly
        once.
        """
        everything = sorted([*self._free, *used])
        assert everything == list(range(self.count)), f"free and used are not the pool of {self.count}: {everything}"
        assert all(self._is_free[block] for block in self._free), "a free block is marked as used"
        assert sum(self._is_free) == len(self._free), "a used block is marked as free"
