"""Sums over the ranks of a stage that share a machine, through memory that they all map.

Theory of operation
-------------------
Each rank has two slots in the shared memory and a counter. To add up a piece, a rank copies its part into one of its
slots, then raises its counter, waits until all counters are there, and adds the slots up in the order of the ranks: so
all have the same bits, whatever the piece's size and whoever came last. The two slots take turns. A rank that raises
its counter for piece n + 1 has read piece n, so whoever has seen all of these counters may overwrite the slots of n.

A rank must see the others' slots as they were when it saw their counters. The processors of x86 keep stores in order
and loads in order; others need not, so elsewhere ranks sum through their process group.

Ranks of a stage have equal work, so they wait for microseconds, and spin. One that waits longer lets others run, since
a rank without a core of its own would else be kept from coming. torch.distributed's sum takes ten times as long, most
of it for waking threads.
"""

import contextlib
import mmap
import os
import platform
import secrets
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from services.worker.parallel.layout import GroupRank

SLOT_BYTES = 512 << 10
_LINE_BYTES = 64
_LINE_NUMBERS = _LINE_BYTES // 8
_PAGE_BYTES = 4096
_FOLDER = Path("/dev/shm")
_SPINS = 200
"""Looks at a counter between two looks at the clock."""
_SPIN_S = 0.0003
_NAP_AFTER_S, _NAP_S = 0.005, 0.0001


class SharedMemorySums:
    """See Sums. `memory` has room for `memory_bytes(tp)` bytes and is zeroed; `place` is this rank's of `tp`."""

    def __init__(self, memory: mmap.mmap, place: int, tp: int, limit_s: float) -> None:
        self._memory = memory
        self._place, self._tp = place, tp
        self._limit_s = limit_s
        self._counters = memoryview(memory)[: tp * _LINE_BYTES].cast("q")
        self._pieces = 0
        self._closed = False
        self._slots: dict[torch.dtype, list[list[Tensor]]] = {}

    def add_up(self, part: Tensor) -> None:
        flat = part.view(-1) if part.is_contiguous() else part.reshape(-1)
        slots = self._slots.get(part.dtype) or self._typed_slots(part.dtype)
        for piece in torch.split(flat, SLOT_BYTES // part.dtype.itemsize):
            self._add_up_piece(piece, slots)
        if flat.data_ptr() != part.data_ptr():
            part.copy_(flat.view_as(part))

    def close(self) -> None:
        """Ends a wait under way with an error. The memory goes with its last user."""
        self._closed = True

    def _add_up_piece(self, piece: Tensor, slots: list[list[Tensor]]) -> None:
        size, turn = piece.numel(), slots[self._pieces % 2]
        turn[self._place][:size].copy_(piece)
        self._pieces += 1
        self._counters[self._place * _LINE_NUMBERS] = self._pieces
        for place in range(self._tp):
            if self._counters[place * _LINE_NUMBERS] < self._pieces:
                self._await(place)
        if self._tp == 2:
            torch.add(turn[0][:size], turn[1][:size], out=piece)
            return
        total = turn[0][:size].float()
        if total.data_ptr() == turn[0].data_ptr():
            total = total.clone()
        for other in turn[1:]:
            total += other[:size]
        piece.copy_(total)

    def _await(self, place: int) -> None:
        """Returns when the rank at `place` has come to the present piece."""
        counters, index, pieces = self._counters, place * _LINE_NUMBERS, self._pieces
        started_s = time.perf_counter()
        while True:
            for _ in range(_SPINS):
                if counters[index] >= pieces:
                    return
            waited_s = time.perf_counter() - started_s
            if self._closed or waited_s > self._limit_s:
                raise RuntimeError(f"the rank at place {place} of this stage did not come to a sum: {waited_s:.1f} s")
            if waited_s > _SPIN_S:
                time.sleep(_NAP_S if waited_s > _NAP_AFTER_S else 0)

    def _typed_slots(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """The slots of each turn, by place."""
        numbers, first = SLOT_BYTES // dtype.itemsize, _header_bytes(self._tp)
        made = [
            [
                torch.frombuffer(
                    self._memory, dtype=dtype, count=numbers, offset=first + (turn * self._tp + place) * SLOT_BYTES
                )
                for place in range(self._tp)
            ]
            for turn in range(2)
        ]
        self._slots[dtype] = made
        return made


def memory_bytes(tp: int) -> int:
    """Shared memory of a stage with `tp` ranks."""
    return _header_bytes(tp) + 2 * tp * SLOT_BYTES


def _header_bytes(tp: int) -> int:
    return -(-tp * _LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES


def meet_in_memory(store: Store, rank: GroupRank, limit_s: float) -> SharedMemorySums | None:
    """The sums of the rank's stage if all its ranks can map the same memory, else None on all of them. All of them call
    this, with the epoch's store.
    """
    tp, key = rank.layout.tp, f"sums/{rank.stage}"
    path: Path | None = None
    memory = None
    if rank.place == 0:
        path = _new_memory(memory_bytes(tp))
        store.set(key, "" if path is None else path.name)
    name = store.get(key).decode()
    if name:
        memory = _mapped(_FOLDER / name, memory_bytes(tp))
    store.set(f"{key}/{rank.place}", "" if memory is None else "mapped")
    everywhere = all(store.get(f"{key}/{place}") for place in range(tp))  # the one store is asked by all alike
    if path is not None:
        path.unlink(missing_ok=True)  # who has mapped it keeps it
    return SharedMemorySums(memory, rank.place, tp, limit_s) if memory is not None and everywhere else None


def _new_memory(size: int) -> Path | None:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    path = _FOLDER / f"fastserve-{secrets.token_hex(16)}"
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, size)  # a full file system is found out now, not by a signal
    except OSError:
        path.unlink()
        return None
    finally:
        os.close(file)
    return path


def _mapped(path: Path, size: int) -> mmap.mmap | None:
    with contextlib.suppress(OSError, ValueError):
        file = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(file, size)
        finally:
            os.close(file)
    return None
