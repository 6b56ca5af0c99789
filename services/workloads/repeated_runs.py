"""Figures of runs that were repeated: the median, and the spread from the least to the greatest. Pure.

Two runs of one system differ: the machine does other things too, and one late message changes what runs next. So a
difference between two systems counts only where their spreads do not overlap. A few repetitions may also agree by
chance, so a difference of less than LEAST_FACTOR never counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

NameT = TypeVar("NameT")

Result = Mapping[str, Any]
"""The content of a `result.json`."""

LEAST_FACTOR = 1.05


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of several runs."""

    median: float
    least: float
    greatest: float

    def times_less_than(self, other: "Spread") -> float | None:
        """By which factor it is less than another, below 1 if it is more; None if there is no difference."""
        if self.least <= other.greatest and other.least <= self.greatest:
            return None
        if not self.median or not other.median:
            return None
        factor = other.median / self.median
        return None if 1 / LEAST_FACTOR < factor < LEAST_FACTOR else factor


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(median(values), min(values), max(values))


def spread_of(results: Sequence[Result], field: str, statistic: str) -> Spread | None:
    """The spread of a statistic of a distribution, over runs: `spread_of(results, "jct_s", "p99")`. None if a run lacks
    it.
    """
    values = [result[field][statistic] for result in results]
    return None if not values or None in values else spread(values)


def middle_run(results: Sequence[Result]) -> int:
    """The position of the run with the median mean JCT; of an even number of runs, the better of the two."""
    order = sorted(range(len(results)), key=lambda number: _mean_jct_s(results[number]))
    return order[(len(order) - 1) // 2]


def soonest(results: Mapping[NameT, Sequence[Result]]) -> NameT:
    """The name of the system with the least median of mean JCTs; the first of those that tie."""
    return min(results, key=lambda name: median(_mean_jct_s(result) for result in results[name]))


def _mean_jct_s(result: Result) -> float:
    """Without a job that ended well, it took for ever."""
    mean_s: float | None = result["jct_s"]["mean"]
    return float("inf") if mean_s is None else mean_s
