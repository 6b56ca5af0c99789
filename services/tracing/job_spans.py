"""The intervals of one job's life in one service, of which there are only so many: what is over is merged. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        count = self._counts.get(name, 0)
        if count < self._most[name]:
            made = Interval(name, start_s, end_s, labels or {}, dict(amounts or {}), active_s=end_s - start_s)
            self._counts[name] = count + 1
            self._last[name] = made
            self.intervals.append(made)
            return
        last = self._last[name]
        last.end_s = max(last.end_s, end_s)
        last.parts += 1
        last.active_s += end_s - start_s
        for key, value in (amounts or {}).items():
            last.amounts[key] = last.amounts.get(key, 0) + value
