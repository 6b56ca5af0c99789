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
from services.domain.work import KvLinkItem

MOST_BATCHES = 10_000

ItemT = TypeVar("ItemT")


class Peer(Generic[ItemT]):
    """A stream's outgoing side."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Epoch, Sequence[ItemT]]] = deque()
        self._something = asyncio.Event()
        self._closed = asyncio.Event()
        self._error: FastServeError | None = None

    @property
    def is_closed(self) -> bool:
        """The stream is to end."""
        return self._error is not None

    def send(self, epoch: Epoch, items: Sequence[ItemT]) -> None:
        """One turn's messages."""
        if self.is_closed:
            return
        self._batches.append((epoch, items))
        self._something.set()
        if len(self._batches) > MOST_BATCHES:
            self.close(NotReadyError("the peer does not read what it is told"))

    def close(self, error: FastServeError) -> None:
        """End the stream with this error."""
        if self._error is None:
            self._error = error
            self._batches.clear()
            self._closed.set()

    async def until_closed(self) -> None:
        """Raises the error that the stream is to end with, once there is one."""
        await self._closed.wait()
        assert self._error is not None
        raise self._error

    async def take(self) -> list[tuple[Epoch, Sequence[ItemT]]]:
        """Batches to be written; waits for one."""
        await self._something.wait()
        self._something.clear()
        batches = list(self._batches)
        self._batches.clear()
        return batches


class SchedulerPeer(Peer[KvLinkItem]):
    """A stream of the scheduler."""


class WorkerPeer(Peer[KvToWorker]):
    """A stream of a worker's stage."""

    def __init__(self, epoch: Epoch, stage: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.stage = stage
