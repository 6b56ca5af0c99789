"""The outgoing side of a stream: what waits to be written to a peer, bounded, and how the stream is told to end.

A driver fills it and never waits; the stream's writer empties it. Nothing here grows with a peer's slowness: one that
lets the bound be reached has stopped reading and loses its stream, even while the writer is stuck in a write to it.
What is put in after that is dropped, because the next stream opens with all there is to know.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from services.domain.errors import FastServeError, NotReadyError

ItemT = TypeVar("ItemT")


class OutgoingSide:
    """Something may wait to be written; the stream may have to end."""

    def __init__(self) -> None:
        self._error: FastServeError | None = None
        self._closed = asyncio.Event()
        self._filled = asyncio.Event()
        self._written = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """The stream is to end."""
        return self._error is not None

    def close(self, error: FastServeError) -> None:
        """End the stream with this error, unless it is to end with another already."""
        if self._error is None:
            self._error = error
            self._closed.set()
            self._written.set()

    async def until_closed(self) -> None:
        """Raises the error that the stream is to end with, once there is one."""
        await self._closed.wait()
        assert self._error is not None
        raise self._error

    async def flushed(self) -> None:
        """Until the writer has written everything and waits for more, or will write nothing more."""
        await self._written.wait()

    async def wait(self) -> None:
        """For the writer: until there is something to write."""
        if not self._filled.is_set():
            self._written.set()
        await self._filled.wait()
        self._filled.clear()

    def _wake(self) -> None:
        self._written.clear()
        self._filled.set()


class Outbox(OutgoingSide, Generic[ItemT]):
    """Items in order, at most `limit` of them. `peer` is who reads them, for the error."""

    def __init__(self, limit: int, peer: str) -> None:
        super().__init__()
        self._limit = limit
        self._peer = peer
        self._items: deque[ItemT] = deque()

    def put(self, item: ItemT) -> None:
        """Add an item. Closes the stream if the peer has let too many wait; drops it if the stream is to end."""
        if self.is_closed:
            return
        self._items.append(item)
        self._wake()
        if len(self._items) > self._limit:
            self.close(NotReadyError(f"{self._peer} does not read: {self._limit} messages wait for it"))

    def close(self, error: FastServeError) -> None:
        super().close(error)
        self._items.clear()

    async def take(self) -> list[ItemT]:
        """For the writer: all items; waits for the first."""
        await self.wait()
        items = list(self._items)
        self._items.clear()
        return items
