"""Worker groups as processes of this machine: what `fastserve autoscale` scales on Kubernetes (ScaledWorkers), as a
StatefulSet does it. A number that is wanted again while its process still drains begins when that is gone.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.local_process import LocalProcess
from benchmarks.settings import BenchError

Span = tuple[int, float, float]
"""A group's number, and when its process began and was gone, by time.perf_counter."""


class LocalGroups:
    """`argv_of` makes the command line of a group's worker; `folder` takes their ready files, `log` what they write."""

    def __init__(self, argv_of: Callable[[int], Sequence[str]], folder: Path, log: Path, stop_limit_s: float) -> None:
        self._argv_of = argv_of
        self._folder = folder
        self._log = log
        self._stop_limit_s = stop_limit_s
        self._count = 0
        self._running: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, LocalProcess] = {}
        self._asked_to_end: set[int] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        self.spans: list[Span] = []
        """Of the processes that are gone."""
        self.starts_s: list[float] = []
        """How long each took until it was ready."""

    async def others(self) -> list[str]:
        """Nothing else scales them."""
        return []

    async def replicas(self) -> int:
        """How many there are to be."""
        return self._count

    async def set_replicas(self, count: int) -> None:
        """Begins and ends the highest ones. Raises BenchError if one has ended by itself."""
        self.check()
        self._scale(count)

    def _scale(self, count: int) -> None:
        before, self._count = self._count, count
        for number in range(before, count):
            if number not in self._running:
                self._running[number] = asyncio.create_task(self._life(number))
        for number in range(count, before):
            if number in self._processes:
                self._ask_to_end(number)

    def check(self) -> None:
        """Raises BenchError if a worker has ended by itself, or could not begin."""
        for task in self._running.values():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def stop(self) -> None:
        """Ends all, and waits until they are gone."""
        self._scale(0)
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _life(self, number: int) -> None:
        """Of the group's processes, for as long as it is wanted."""
        while number < self._count:
            began_s = time.perf_counter()
            argv, name = self._argv_of(number), f"worker-{number}"
            process = self._processes[number] = await LocalProcess.begin(argv, name, self._folder, self._log)
            if number >= self._count:
                self._ask_to_end(number)
            if await process.addresses() is not None:
                self.starts_s.append(time.perf_counter() - began_s)
            reason = await process.ended()
            del self._processes[number]
            self.spans.append((number, began_s, time.perf_counter()))
            if number not in self._asked_to_end:
                raise BenchError(f"worker {number} ended: {reason}")
            self._asked_to_end.discard(number)
        del self._running[number]

    def _ask_to_end(self, number: int) -> None:
        """With SIGTERM, so that it drains; killed if it has not ended in time."""
        self._asked_to_end.add(number)
        stopping = asyncio.create_task(self._processes[number].stop(self._stop_limit_s))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
