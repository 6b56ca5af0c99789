"""Moving KV blocks with the engine, and with a plain copy. Runs in the engine's process (engine_process.py)."""

import threading
import time
from collections.abc import Sequence
from random import Random

import numpy as np
import torch

from services.domain.ids import BlockId, CommandNumber, Epoch, JobId
from services.domain.protocol import Assign, BlockMove, Done, KvToWorker, Offload, ReleaseBlocks, Upload
from services.worker.engine.engine import Engine

JOB_BLOCKS = 32
"""Blocks of a job that is moved: 512 tokens at 16 a block."""

COPY_LIMIT_S = 60.0


class _Moved:
    """A job and its blocks in both pools."""

    def __init__(self, number: int, device_blocks: list[int], host_blocks: list[int]) -> None:
        self.job_id = JobId(f"copy-{number}/0")
        self.device_blocks = tuple(BlockId(block) for block in device_blocks)
        pairs = zip(device_blocks, host_blocks, strict=True)
        self.moves = tuple(
            BlockMove(index, BlockId(on_device), BlockId(on_host)) for index, (on_device, on_host) in enumerate(pairs)
        )


class EngineCopies:
    """Offloads and uploads jobs of 512 tokens, from the KV manager's command to the last Done."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pools = engine.pools
        self._commands = 0
        self._done = threading.Semaphore(0)

    def moved_bytes(self, jobs: int) -> int:
        """Bytes of KV of that many jobs."""
        return jobs * JOB_BLOCKS * self._pools.shape.block_bytes

    def engine_seconds(self, jobs: int, scattered: bool) -> tuple[float, float]:
        """Seconds to offload all jobs, and to upload them. Scattered: no two blocks of a job are neighbours,
        except by chance; otherwise all are, in both pools.
        """
        moved = self._jobs(jobs, scattered)
        self._engine.begin_epoch(Epoch(self._engine.epoch + 1), self._on_done)
        for one in moved:
            self._engine.apply(Assign(self._number(), one.job_id, one.device_blocks))
        offload_s = self._seconds([Offload(self._number(), one.job_id, one.moves, 0) for one in moved])
        upload_s = self._seconds([Upload(self._number(), one.job_id, one.device_blocks, one.moves, 0) for one in moved])
        for one in moved:
            self._engine.apply(ReleaseBlocks(self._number(), one.job_id))
        return offload_s, upload_s

    def plain_seconds(self, jobs: int) -> tuple[float, float]:
        """Seconds to copy the same bytes in one piece: by numpy on one thread, by torch on all of them."""
        count = jobs * JOB_BLOCKS
        source, target = self._pools.device[:count], self._pools.host[:count]
        source_bytes = source.view(count, -1).view(torch.uint8).numpy()
        target_bytes = target.view(count, -1).view(torch.uint8).numpy()
        began_s = time.perf_counter()
        np.copyto(target_bytes, source_bytes)
        between_s = time.perf_counter()
        target.copy_(source)
        return between_s - began_s, time.perf_counter() - between_s

    def _jobs(self, jobs: int, scattered: bool) -> list[_Moved]:
        blocks = jobs * JOB_BLOCKS
        assert blocks <= min(self._pools.device_block_count, self._pools.host_block_count), "the pools are too small"
        on_device, on_host = list(range(blocks)), list(range(blocks))
        if scattered:
            Random(0).shuffle(on_device)
            Random(1).shuffle(on_host)
        starts = range(0, blocks, JOB_BLOCKS)
        return [
            _Moved(number, on_device[start : start + JOB_BLOCKS], on_host[start : start + JOB_BLOCKS])
            for number, start in enumerate(starts)
        ]

    def _seconds(self, commands: Sequence[KvToWorker]) -> float:
        """From the first command to the last Done."""
        began_s = time.perf_counter()
        for command in commands:
            self._engine.apply(command)
        for _ in commands:
            assert self._done.acquire(timeout=COPY_LIMIT_S), "a copy does not end"
        return time.perf_counter() - began_s

    def _on_done(self, _: Done) -> None:
        self._done.release()

    def _number(self) -> CommandNumber:
        self._commands += 1
        return CommandNumber(self._commands)
