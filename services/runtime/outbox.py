"""The outgoing side of a stream: a bounded queue of what is waiting to be written to a peer, and the request to end the
stream.

A driver fills it without waiting; the stream's writer empties it. Nothing here grows because a peer is slow: a peer
that lets the bound be reached has stopped reading and loses its stream, even while the writer is stuck in a write to
it. Items added after that are dropped, because the next stream opens with the full state.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from services.domain.errors import FastServeError, NotReadyError

ItemT = TypeVar("ItemT")


class OutgoingSide:
    """Signals that something is waiting to be written, or that the stream must end."""

    def __init__(self) -> None:
        self._error: FastServeError | None = None
        self._closed = asyncio.Event()
        self._filled = asyncio.Event()
        self._written = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether the stream must end."""
        return self._error is not None

    def close(self, error: FastServeError) -> None:
        """End the stream with this error, unless it is already ending with another one."""
        if self._error is None:
            self._error = error
            self._closed.set()
            self._written.set()

    async def until_closed(self) -> None:
        """Wait until the stream must end, and raise its error."""
        await self._closed.wait()
        assert self._error is not None
        raise self._error

    async def flushed(self) -> None:
        """Wait until the writer has written everything, or will write nothing more."""
        await self._written.wait()

    async def wait(self) -> None:
        """For the writer: wait until there is something to write."""
        if not self._filled.is_set():
            self._written.set()
        await self._filled.wait()
        self._filled.clear()

    def _wake(self) -> None:
        self._written.clear()
        self._filled.set()


class Outbox(OutgoingSide, Generic[ItemT]):
    """Items in order, at most `limit` of them. `peer` names the reader in the error."""

    def __init__(self, limit: int, peer: str) -> None:
        super().__init__()
        self._limit = limit
        self._peer = peer
        self._items: deque[ItemT] = deque()

    def put(self, item: ItemT) -> None:
        """Add an item. Closes the stream if too many items are waiting; drops the item if the stream is closed."""
        if self.is_closed:
            return
        self._items.append(item)
        self._wake()
        if len(self._items) > self._limit:
            message = f"{self._peer} is not reading its stream: more than {self._limit} messages are waiting for it"
            self.close(NotReadyError(message))

    def close(self, error: FastServeError) -> None:
        super().close(error)
        self._items.clear()

    async def take(self) -> list[ItemT]:
        """For the writer: remove and return all items. Waits until there is one."""
        await self.wait()
        items = list(self._items)
        self._items.clear()
        return items
