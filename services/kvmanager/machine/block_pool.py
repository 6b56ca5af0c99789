"""A pool of blocks: which are free.

Ids are handed out lowest first, so that the same history always gives the same ids, and so that what a pool does next
depends on which blocks are free and not on the order in which they became so. Asking for more than there is, and
giving back what is free already, are bugs of the caller.

There is one byte for each block, and to look for the next free one is a search in memory: of a pool of 10,000 blocks it
takes less time than a step of Python code.
"""

from collections.abc import Sequence
from typing import cast

from services.domain.ids import BlockId


class BlockPool:
    """Blocks 0 to count - 1 of one pool. `free_count`: blocks that nobody holds."""

    __slots__ = ("_is_free", "_lowest", "count", "free_count")

    def __init__(self, count: int) -> None:
        self.count = count
        self.free_count = count
        self._is_free = bytearray(b"\1") * count
        self._lowest = 0
        """No block below is free."""

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` may be called."""
        return count <= self.free_count

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` blocks, lowest ids first."""
        assert self.can_allocate(count), f"{count} blocks of {self.free_count} free ones"
        is_free = self._is_free
        taken: list[int] = []
        at = self._lowest
        for _ in range(count):
            at = is_free.find(1, at)
            is_free[at] = 0
            taken.append(at)
        self._lowest = at
        self.free_count -= count
        return cast(list[BlockId], taken)

    def free(self, blocks: Sequence[BlockId]) -> None:
        """Give blocks back."""
        is_free = self._is_free
        for block in blocks:
            assert not is_free[block], f"block {block} is free already"
            is_free[block] = 1
        self._lowest = min(self._lowest, *blocks) if blocks else self._lowest
        self.free_count += len(blocks)

    def free_ids(self) -> tuple[BlockId, ...]:
        """The free blocks, ascending."""
        return tuple(BlockId(block) for block, is_free in enumerate(self._is_free) if is_free)

    def check(self, used: Sequence[BlockId]) -> None:
        """Assert that `used`, all blocks in anybody's table, and the free ones are each block of the pool exactly
        once.
        """
        free = self.free_ids()
        everything = sorted([*free, *used])
        assert everything == list(range(self.count)), f"free and used are not the pool of {self.count}: {everything}"
        assert len(free) == self.free_count, f"{len(free)} blocks are free, counted are {self.free_count}"
        assert self._lowest <= min(free, default=self.count), "a free block is below the lowest"
