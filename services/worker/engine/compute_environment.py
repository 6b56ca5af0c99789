"""The process's compute environment, set before torch is imported. No torch here.

OpenMP's threads should spin for some 75 us when they wait for one another, then sleep. By default they spin for
milliseconds: as soon as a third thread of a 2-core machine wants to run (gRPC, the copies, the scheduler), the others
spin on the core that the preempted one needs, a step of the model takes 10 to 30 times as long, and the scheduler's
plans come late. Threads that never spin sleep and wake at every product of a small model, which costs half of its
speed. Measured on 2 cores with the 30M model S, decode of 16 jobs: on a quiet machine 6.3 ms by default, 6.4 with short
spins, 9.5 passive; beside several busy processes 89, 29 and 14 ms.

torch should take its memory in huge pages where the system allows it: reading weights then misses the TLB less often.

glibc returns large freed blocks to the system at once and takes them back, page by page, at the next use: every
iteration would pay for its activations again. Memory that was used once is kept instead. What a model was loaded with
is returned once it is ready: no iteration needs that.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPIN_COUNT = "3000"

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 512 << 20
_LARGEST_PIECE_BYTES = 32 << 20
"""The most that every version of glibc accepts for M_MMAP_THRESHOLD; more is refused silently."""


def set_compute_environment() -> None:
    """Sets what is not set yet. Called at the start of a process: OpenMP reads it when torch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_PIECE_BYTES)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_freed_memory() -> None:
    """Gives the system the freed memory that is kept."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


@contextmanager
def importing_torch() -> Iterator[None]:
    """Imports without Python's collector, which would walk torch's objects again and again while they are made, a sixth
    of the time that the import takes. They stay: it never walks them afterwards.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
