"""The rate that a system sustains under a limit, read off a sweep of rates (PAPER 5: v3, N26).

Latency is taken to grow exponentially between two measured rates: near capacity it grows by factors, and a straight
line between two far points would cross the limit too early. A sweep that never crosses says only "at least" or "at
most", and so does the value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log


class Bound(StrEnum):
    """How a rate, or a ratio of two, is known. OPEN: the sweeps bound neither side of it."""

    EXACT = ""
    AT_LEAST = "≥ "
    AT_MOST = "≤ "
    OPEN = "? "


@dataclass(frozen=True, slots=True)
class Known:
    """A number and how it is known."""

    value: float
    bound: Bound = Bound.EXACT

    def over(self, other: "Known") -> "Known":
        """How many times `other` this is."""
        lower = self.bound in (Bound.AT_LEAST, Bound.OPEN) or other.bound in (Bound.AT_MOST, Bound.OPEN)
        upper = self.bound in (Bound.AT_MOST, Bound.OPEN) or other.bound in (Bound.AT_LEAST, Bound.OPEN)
        bounds = {(False, False): Bound.EXACT, (True, False): Bound.AT_LEAST, (False, True): Bound.AT_MOST}
        return Known(self.value / other.value, bounds.get((lower, upper), Bound.OPEN))


def sustained_rate(points: Sequence[tuple[float, float]], limit: float) -> Known:
    """The rate at which `points`, (rate, latency) ascending in rate, leave the limit for good; the highest rate
    measured where they never do, the lowest where they never keep it.
    """
    assert points, "a sweep has points"
    within = [place for place, (_, latency) in enumerate(points) if latency <= limit]
    if not within:
        return Known(points[0][0], Bound.AT_MOST)
    last = within[-1]
    if last == len(points) - 1:
        return Known(points[last][0], Bound.AT_LEAST)
    (rate0, latency0), (rate1, latency1) = points[last], points[last + 1]
    if latency0 > 0:
        share = log(limit / latency0) / log(latency1 / latency0)
    else:
        share = (limit - latency0) / (latency1 - latency0)
    return Known(rate0 + (rate1 - rate0) * share)
