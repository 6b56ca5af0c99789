"""The bounded inbox of a driver: everything that has happened since its last turn.

Handlers and streams add what they receive; one task takes all of it at once, so that a turn sees every waiting event,
in the order of arrival. `post` is for events that must never wait (a result, the end of a stream). `put` is for events
that can wait: they stay in their stream while the inbox is full, and are gathered for a moment when they come in
numbers. A turn, and the messages that follow from it, cost more than what is in them.
"""

import asyncio
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")


class Wakeup(NamedTuple):
    """Time has passed, and nothing else has happened."""


class Inbox(Generic[ItemT]):
    """`put` waits while there are `limit` items or more; `post` is not bounded. What is put within `gather_s` seconds
    after such items were taken is taken at the end of this time, or with the next item that is posted. Used on one
    event loop.
    """

    def __init__(self, limit: int, gather_s: float = 0.0) -> None:
        self._limit = limit
        self._gather_s = gather_s
        self._gathers_until_s = 0.0
        self._has_put = False
        self._timer: asyncio.TimerHandle | None = None
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
        self._has_put = True
        self._items.append(item)
        loop = asyncio.get_running_loop()
        if loop.time() >= self._gathers_until_s or len(self._items) >= self._limit:
            self._filled.set()
        elif self._timer is None:
            self._timer = loop.call_at(self._gathers_until_s, self._filled.set)

    async def take(self) -> list[ItemT]:
        """Remove and return all items in order. Waits until there is one."""
        await self._filled.wait()
        self._filled.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._has_put:
            self._has_put = False
            self._gathers_until_s = asyncio.get_running_loop().time() + self._gather_s
        items, self._items = self._items, []
        self._has_room.set()
        return items
