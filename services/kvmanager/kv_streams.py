"""What waits to be written to the scheduler or a worker's stage. The driver fills, the stream's handler empties.

A turn's messages are one batch. A peer that lets batches come to the bound has stopped to read, and loses its stream,
also where the stream's handler is stuck in writing to it. What is sent after that is dropped.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from services.domain.errors import FastServeError, NotReadyError
from services.domain.ids import Epoch
from services.domain.protocol import KvToWorker
from services.domain.server_status import KvLinkItem
from services.runtime.streams import Closable

MOST_BATCHES = 10_000

ItemT = TypeVar("ItemT")


class BatchStream(Closable, Generic[ItemT]):
    """The batches that wait."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: deque[tuple[Epoch, Sequence[ItemT]]] = deque()
        self._something = asyncio.Event()

    def send(self, epoch: Epoch, items: Sequence[ItemT]) -> None:
        """One turn's messages."""
        if self.is_closed:
            return
        self._batches.append((epoch, items))
        self._something.set()
        if len(self._batches) > MOST_BATCHES:
            self.close(NotReadyError("the peer does not read what it is told"))

    def close(self, error: FastServeError) -> None:
        super().close(error)
        self._batches.clear()

    async def take(self) -> list[tuple[Epoch, Sequence[ItemT]]]:
        """Batches to be written; waits for one."""
        await self._something.wait()
        self._something.clear()
        batches = list(self._batches)
        self._batches.clear()
        return batches


class SchedulerStream(BatchStream[KvLinkItem]):
    """A stream of the scheduler."""


class KvWorkerStream(BatchStream[KvToWorker]):
    """A stream of a worker's stage."""

    def __init__(self, epoch: Epoch, stage: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.stage = stage
