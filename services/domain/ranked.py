"""A total order of items with ranks, best first.

Plain sorted lists beat trees here. The longest queue holds some 20,000 jobs: bisecting it takes 15 comparisons, and an
insertion moves at most 160 kB (about 4 us), while the top, which every decision walks, is a slice. Ranks and items are
two parallel lists: comparing bare ranks is faster than comparing pairs, and a slice of items needs no unpacking.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from services.domain.protocol import Rank


class HasRank(Protocol):
    """An item that can be ordered."""

    @property
    def rank(self) -> Rank | None:
        """The item's rank; None while it has no rank and is in no order."""


ItemT = TypeVar("ItemT", bound=HasRank)


class Ranked(Generic[ItemT]):
    """Items by rank. Ranks are distinct, because arrival numbers are."""

    __slots__ = ("_items", "_ranks")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._items: list[ItemT] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[ItemT]:
        return iter(self._items)

    def add(self, item: ItemT) -> None:
        """Add an item at its rank."""
        assert item.rank is not None
        at = bisect_left(self._ranks, item.rank)
        self._ranks.insert(at, item.rank)
        self._items.insert(at, item)

    def remove(self, item: ItemT) -> None:
        """Remove an item, by the rank at which it was added."""
        at = self._place(item)
        del self._ranks[at]
        del self._items[at]

    def move(self, item: ItemT, rank: Rank) -> None:
        """Move an item to a new rank. The caller then updates `item.rank`."""
        ranks, items = self._ranks, self._items
        at = self._place(item)
        # With many policies ranks change while the order stays the same.
        if (at == 0 or ranks[at - 1] < rank) and (at + 1 == len(ranks) or rank < ranks[at + 1]):
            ranks[at] = rank
            return
        del ranks[at], items[at]
        at = bisect_left(ranks, rank)
        ranks.insert(at, rank)
        items.insert(at, item)

    def rank_at(self, place: int) -> Rank | None:
        """The rank of the item at this place, counted from 0; None beyond the last place."""
        return self._ranks[place] if place < len(self._ranks) else None

    def slice(self, start: int, stop: int) -> list[ItemT]:
        """Items at these places, best first."""
        return self._items[start:stop]

    def lowest(self) -> ItemT | None:
        """The item that would run last."""
        return self._items[-1] if self._items else None

    def below(self, rank: Rank, limit: int) -> list[ItemT]:
        """At most `limit` items that rank strictly below `rank`, lowest first."""
        start = bisect_right(self._ranks, rank)
        lowest = self._items[max(start, len(self._items) - limit) :]
        lowest.reverse()
        return lowest

    def _place(self, item: ItemT) -> int:
        assert item.rank is not None
        at = bisect_left(self._ranks, item.rank)
        assert self._items[at] is item, f"{item!r} is not at the place of its rank"
        return at
