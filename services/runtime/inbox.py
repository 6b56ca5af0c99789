"""The bounded inbox of a driver: everything that has happened since its last turn.

Handlers and streams add what they receive; one task takes all of it at once, so that a turn sees every waiting event,
in the order of arrival. `post` is for events that must never wait (a result, the end of a stream). `put` is for events
that can wait: they stay in their stream while the inbox is full.
"""

import asyncio
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")


class Wakeup(NamedTuple):
    """Time has passed, and nothing else has happened."""


class Inbox(Generic[ItemT]):
    """`put` waits while there are `limit` items or more; `post` is not bounded. Used on one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[ItemT] = []
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def post(self, item: ItemT) -> None:
        """Add an item at once, even if the inbox is full."""
        self._items.append(item)
        self._filled.set()

    async def put(self, item: ItemT) -> None:
        """Add an item. Waits while the inbox is full."""
        while len(self._items) >= self._limit:
            self._has_room.clear()
            await self._has_room.wait()
        self.post(item)

    async def take(self) -> list[ItemT]:
        """Remove and return all items in order. Waits until there is one."""
        await self._filled.wait()
        self._filled.clear()
        items, self._items = self._items, []
        self._has_room.set()
        return items
