"""The intervals of one job's life in one service, of which there are only so many: what is over is merged. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class Interval:
    """A span to be: times in seconds of the service's clock. `labels` say what it was, `amounts` are added up when
    intervals are merged; `parts` is how many were, and `active_s` the sum of their durations.
    """

    name: str
    start_s: float
    end_s: float
    labels: Mapping[str, str | int] = field(default_factory=dict)
    amounts: dict[str, int] = field(default_factory=dict)
    parts: int = 1
    active_s: float = 0.0

    def take_in(self, other: "Interval") -> None:
        """Makes another one, which ended later, a part of this one. The labels stay."""
        self.end_s = max(self.end_s, other.end_s)
        self.parts += other.parts
        self.active_s += other.active_s
        for key, value in other.amounts.items():
            self.amounts[key] = self.amounts.get(key, 0) + value


class JobSpans:
    """Intervals in the order in which they ended; `most` is how many of each name there may be."""

    def __init__(self, most: Mapping[str, int]) -> None:
        self._most = most
        self._last: dict[str, Interval] = {}
        self._counts: dict[str, int] = {}
        self.intervals: list[Interval] = []

    def add(
        self,
        name: str,
        start_s: float,
        end_s: float,
        amounts: Mapping[str, int] | None = None,
        labels: Mapping[str, str | int] | None = None,
    ) -> None:
        """Adds an interval. Beyond the limit of its name it becomes part of the last one of that name, whose labels
        then stand for the first of its parts.
        """
        made = Interval(name, start_s, end_s, labels or {}, dict(amounts or {}), active_s=end_s - start_s)
        count = self._counts.get(name, 0)
        if count < self._most[name]:
            self._counts[name] = count + 1
            self._last[name] = made
            self.intervals.append(made)
        else:
            self._last[name].take_in(made)

    def merged(self) -> list[Interval]:
        """One interval of each name: what is left of a life that goes on elsewhere."""
        of: dict[str, Interval] = {}
        for one in self.intervals:
            if one.name in of:
                of[one.name].take_in(one)
            else:
                of[one.name] = replace(one, amounts=dict(one.amounts))
        return list(of.values())
