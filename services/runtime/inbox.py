"""The bounded inbox of a driver: everything that happened since its last turn.

Handlers and streams put in what they hear; one task takes all of it at once, so that a turn sees every event that
waited, in the order in which it came. What must never wait (a result, a stream that ended) is posted; what a peer can
wait with is put, and waits at its stream while the inbox is full.
"""

import asyncio
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")


class Wakeup(NamedTuple):
    """Nothing happened but time."""


class Inbox(Generic[ItemT]):
    """At most `limit` items, and those that are posted. Used on one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[ItemT] = []
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def post(self, item: ItemT) -> None:
        """Add an item, however many wait."""
        self._items.append(item)
        self._filled.set()

    async def put(self, item: ItemT) -> None:
        """Add an item; waits while the inbox is full."""
        while len(self._items) >= self._limit:
            self._has_room.clear()
            await self._has_room.wait()
        self.post(item)

    async def take(self) -> list[ItemT]:
        """All items, in order; waits for the first."""
        await self._filled.wait()
        self._filled.clear()
        items, self._items = self._items, []
        self._has_room.set()
        return items
