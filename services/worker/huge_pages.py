"""Memory in huge pages, where the system has them. No torch here.

What is read from end to end in every iteration, or here and there, would miss the cache of the page table all the time
with pages of 4 KiB, and on a virtual machine each miss walks two tables.
"""

import contextlib
import mmap

_MAPPED_BYTES = 64 << 20
ALIGNMENT = 64
"""Bytes of a line of the processor's caches."""


def in_huge_pages(memory: mmap.mmap) -> None:
    """Asks the system for them. Call it before the memory is used."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)


class HugePages:
    """Hands out zeroed memory piece by piece, one behind the other, so that small ones lie in huge pages, too. A
    mapping exists as long as a piece of it, and takes room where it is used.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._used = 0

    def take(self, size: int) -> memoryview:
        """So many bytes, at a multiple of ALIGNMENT. Raises OSError if there is no memory."""
        if size > len(self._memory) - self._used:
            mapped = mmap.mmap(-1, max(size, _MAPPED_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            in_huge_pages(mapped)
            self._memory, self._used = memoryview(mapped), 0
        piece = self._memory[self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return piece
