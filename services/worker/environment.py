"""The process's compute environment, to be set before torch is imported. No torch here.

OpenMP's threads shall wait passively. By default a thread that waits for the others spins on its core; then, as soon
as any third thread of a 2-core machine wants to run (gRPC, the copies, another service), the team waits for the one
that was put aside, and each step of the model takes 10 to 50 times as long. Waiting passively costs some microseconds
a step when nothing else runs.

torch shall take its memory in huge pages, where the system lets it: reading weights misses the page table's cache less.

glibc returns large freed blocks to the system at once, and takes them again, page by page, at the next use: every
iteration would pay for its activations anew. Memory that was used once is kept instead.
"""

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 512 << 20
_LARGEST_PIECE_BYTES = 32 << 20
"""The most that all versions of glibc take for M_MMAP_THRESHOLD; what they refuse, they refuse silently."""


def set_compute_environment() -> None:
    """Sets what is not set yet. To be called at the start of a process: OpenMP reads it when torch is imported."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_PIECE_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
