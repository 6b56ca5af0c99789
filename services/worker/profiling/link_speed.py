"""Measures the link between the pools: how long the copier takes to move a job's KV cache, by its size.

Theory of operation
-------------------
A copy of n bytes takes latency + n / bandwidth. Both come from two sizes: one block, whose time is nearly all latency,
and a job of some hundred tokens. Blocks are scattered over both pools, as in a server after a while, and every run
moves different ones, all of which were touched before: memory in the processor's caches, or not yet handed out by the
system, would distort the figure. Offloads and uploads are timed alike and the slower direction counts: the cost model
has one speed for both. Each time is the median of its runs.
"""

import threading
import time
from collections.abc import Sequence
from statistics import median

from services.domain.copying import CopyDirection, LinkSpeed
from services.domain.errors import FastServeError
from services.domain.ids import BlockId
from services.domain.protocol import BlockMove
from services.worker.kv.copier import Copier
from services.worker.kv.copier_choice import make_copier
from services.worker.kv.pools import KvPools

JOB_TOKENS = 512
RUNS = 20
LONGEST_COPY_S = 60.0


def measure_link(pools: KvPools) -> LinkSpeed:
    """Measures the link. The device pool keeps its contents: copies go out and come back."""
    blocks = min(-(-JOB_TOKENS // pools.shape.block_size), pools.device_block_count, pools.host_block_count)
    copier = make_copier(pools)
    try:
        job_s = _slower_direction_s(copier, [_scattered(pools, blocks, run) for run in range(RUNS)])
        block_s = _slower_direction_s(copier, [_scattered(pools, 1, run) for run in range(RUNS)])
    finally:
        copier.close()
    duplex = pools.device.is_cuda  # the CPU's copier is one thread for both directions
    if job_s <= block_s:  # too few blocks to tell one from the other
        return LinkSpeed(blocks * pools.shape.block_bytes / job_s, 0.0, duplex)
    bytes_per_s = (blocks - 1) * pools.shape.block_bytes / (job_s - block_s)
    return LinkSpeed(bytes_per_s, max(0.0, block_s - pools.shape.block_bytes / bytes_per_s), duplex)


def _scattered(pools: KvPools, count: int, run: int) -> tuple[BlockMove, ...]:
    """Pairs of blocks, different in every run; no two are neighbours if the pools are large enough."""
    device_step, host_step = pools.device_block_count // count, pools.host_block_count // count
    device_first, host_first = run % device_step, run % host_step
    return tuple(
        BlockMove(number, BlockId(device_first + number * device_step), BlockId(host_first + number * host_step))
        for number in range(count)
    )


def _slower_direction_s(copier: Copier, runs: Sequence[tuple[BlockMove, ...]]) -> float:
    for moves in runs:  # takes the memory from the system
        for direction in CopyDirection:
            _copy_s(copier, direction, moves)
    times_s: dict[CopyDirection, list[float]] = {direction: [] for direction in CopyDirection}
    for moves in runs:
        for direction, measured_s in times_s.items():  # out, then back
            measured_s.append(_copy_s(copier, direction, moves))
    return max(median(measured_s) for measured_s in times_s.values())


def _copy_s(copier: Copier, direction: CopyDirection, moves: tuple[BlockMove, ...]) -> float:
    ended = threading.Event()
    started_s = time.perf_counter()
    copier.start(direction, moves, None, ended.set)
    if not ended.wait(LONGEST_COPY_S):
        raise FastServeError(f"a copy of {len(moves)} blocks took longer than {LONGEST_COPY_S:.0f} s")
    return time.perf_counter() - started_s
