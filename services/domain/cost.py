"""The cost model: seconds of an iteration, interpolated from a measured profile.

Prefill time grows about linearly with the prompt, decode time is nearly flat in the context and grows slowly with the
batch (PAPER 1), so linear interpolation between measured points is enough. Beyond the last point the last slope goes
on; before the first its value holds.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from services.domain.errors import InvalidFieldError


class PrefillCost(NamedTuple):
    """Seconds of an iteration that prefills one prompt of so many tokens."""

    tokens: int
    seconds: float


class DecodeCost(NamedTuple):
    """Seconds of an iteration that decodes one token of each of `batch` jobs with `context_tokens` of context each."""

    batch: int
    context_tokens: int
    seconds: float


def _interpolate(points: tuple[tuple[int, float], ...], x: float) -> float:
    """Piecewise linear through ascending points; flat before the first, the last slope after the last."""
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    at = min(bisect_right(points, x, key=lambda point: point[0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    y = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return max(y, y1) if x > x1 else y


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Measured seconds; both tuples ascending and not empty, decode sorted by (batch, context_tokens) with the same
    contexts for every batch.

    Raises InvalidFieldError for an empty table, a time that is not above 0, or one out of order.
    """

    prefill: tuple[PrefillCost, ...]
    decode: tuple[DecodeCost, ...]

    def __post_init__(self) -> None:
        if not self.prefill or not self.decode:
            raise InvalidFieldError("profile", "prefill and decode need at least one measured point each")
        measured_s = [point.seconds for point in self.prefill] + [point.seconds for point in self.decode]
        if not all(0 < seconds < inf for seconds in measured_s):
            raise InvalidFieldError("profile", "seconds must be above 0 and finite")
        prefill_tokens = [point.tokens for point in self.prefill]
        decode_places = [point[:2] for point in self.decode]
        if sorted(set(prefill_tokens)) != prefill_tokens or sorted(set(decode_places)) != decode_places:
            raise InvalidFieldError("profile", "points must be ascending and distinct")

    def prefill_s(self, tokens: int) -> float:
        """Seconds of an iteration that prefills one prompt of `tokens` tokens."""
        return _interpolate(self.prefill, tokens)

    def decode_s(self, batch: int, context_tokens: float) -> float:
        """Seconds of an iteration that decodes one token of each of `batch` jobs with `context_tokens` of context."""
        batches = sorted({point.batch for point in self.decode})
        by_batch = tuple(
            (size, _interpolate(tuple(point[1:] for point in self.decode if point.batch == size), context_tokens))
            for size in batches
        )
        return _interpolate(by_batch, batch)

    @property
    def smallest_iteration_s(self) -> float:
        """The shortest iteration measured: the first quantum (PAPER 2, v3)."""
        return min(min(point.seconds for point in self.prefill), min(point.seconds for point in self.decode))
