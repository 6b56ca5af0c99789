"""The cost model: seconds of an iteration, interpolated from a measured profile.

Prefill time grows about linearly with the prompt. Decode time is nearly flat in the context and grows slowly with the
batch (PAPER 1). So linear interpolation between measured points is enough. Beyond the last point the last slope
continues; before the first point its value holds.

The time of a mixed batch combines the two tables. Prefills and decodes of one iteration share one reading of the
weights, but not the compute: the rows of the decodes (one a job) go through the same matrix products as those of the
prefills, so the batch costs as much as a prefill of all rows together, and beyond that what decodes cost more than
rows of a prefill, which is their reading of KV:

    prefill(rows + n) + max(0, decode(n, context) - prefill(n))

Where that is less than the two parts one after the other with one reading of the weights (the shortest iteration)
counted once, which only a bent table makes happen, the latter holds.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import NamedTuple

from services.domain.errors import InvalidFieldError


class PrefillCost(NamedTuple):
    """Seconds of an iteration that prefills one prompt of `tokens` tokens."""

    tokens: int
    seconds: float


class DecodeCost(NamedTuple):
    """Seconds of an iteration that decodes one token of each of `batch` jobs with `context_tokens` of context each."""

    batch: int
    context_tokens: int
    seconds: float


class _Line(NamedTuple):
    """Piecewise linear through points of ascending x: flat before the first point, and the last slope after the last
    point, but never below it.
    """

    xs: tuple[int, ...]
    ys: tuple[float, ...]

    def at(self, x: float) -> float:
        xs, ys = self
        if len(xs) == 1 or x <= xs[0]:
            return ys[0]
        place = bisect_right(xs, x, 1, len(xs) - 1)
        return _through(xs[place - 1], ys[place - 1], xs[place], ys[place], x)


def _through(x0: int, y0: float, x1: int, y1: float, x: float) -> float:
    """y at x on the line through two points, but beyond the second point never below it."""
    y = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return y1 if x > x1 and y < y1 else y


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Measured seconds. Both tuples are ascending and not empty; `decode` is sorted by (batch, context_tokens), with
    the same contexts for every batch.

    Raises InvalidFieldError for an empty table, a time that is not greater than 0, or points out of order.
    """

    prefill: tuple[PrefillCost, ...]
    decode: tuple[DecodeCost, ...]
    smallest_iteration_s: float = field(init=False, repr=False, compare=False)
    """The shortest measured iteration: the first quantum (PAPER 2, v3)."""
    _prefill_line: _Line = field(init=False, repr=False, compare=False)
    _decode_batches: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _decode_lines: tuple[_Line, ...] = field(init=False, repr=False, compare=False)
    """Seconds by context, one line per batch size."""

    def __post_init__(self) -> None:
        if not self.prefill or not self.decode:
            raise InvalidFieldError("profile", "must have at least one measured point each for prefill and decode")
        measured_s = [point.seconds for point in self.prefill] + [point.seconds for point in self.decode]
        if not all(0 < seconds < inf for seconds in measured_s):
            raise InvalidFieldError("profile", "seconds must be greater than 0 and finite")
        prefill_tokens = [point.tokens for point in self.prefill]
        decode_places = [point[:2] for point in self.decode]
        if sorted(set(prefill_tokens)) != prefill_tokens or sorted(set(decode_places)) != decode_places:
            raise InvalidFieldError("profile", "measured points must be ascending and distinct")
        self._make_tables()

    def _make_tables(self) -> None:
        """Compute the lookup tables once, because they are used in every iteration."""
        rows = [(batch, list(points)) for batch, points in groupby(self.decode, key=lambda point: point.batch)]
        lines = [
            _Line(tuple(point.context_tokens for point in points), tuple(point.seconds for point in points))
            for _, points in rows
        ]
        prefill = _Line(tuple(point.tokens for point in self.prefill), tuple(point.seconds for point in self.prefill))
        # The only way to set a derived field of a frozen dataclass.
        object.__setattr__(self, "smallest_iteration_s", min(*prefill.ys, *(min(line.ys) for line in lines)))
        object.__setattr__(self, "_prefill_line", prefill)
        object.__setattr__(self, "_decode_batches", tuple(batch for batch, _ in rows))
        object.__setattr__(self, "_decode_lines", tuple(lines))

    def prefill_s(self, tokens: int) -> float:
        """Seconds of an iteration that prefills one prompt of `tokens` tokens."""
        return self._prefill_line.at(tokens)

    def prefill_beside_s(self, to_token: int, rows: int, from_token: int = 0) -> float:
        """Seconds that a prefill of these positions adds to an iteration that computes so many rows of other jobs."""
        return self.prefill_s(to_token + rows) - self.prefill_s(from_token + rows)

    def decode_s(self, batch: int, context_tokens: float) -> float:
        """Seconds of an iteration that decodes one token of each of `batch` jobs with `context_tokens` of context."""
        batches, lines = self._decode_batches, self._decode_lines
        if len(batches) == 1 or batch <= batches[0]:
            return lines[0].at(context_tokens)
        place = bisect_right(batches, batch, 1, len(batches) - 1)
        fewer_s, more_s = lines[place - 1].at(context_tokens), lines[place].at(context_tokens)
        return _through(batches[place - 1], fewer_s, batches[place], more_s, batch)

    def iteration_s(self, prefills: Sequence[tuple[int, int]], decode_batch: int, mean_context_tokens: float) -> float:
        """Seconds of an iteration that prefills positions from_token to to_token - 1 of some jobs and decodes one token
        of each of `decode_batch` others, with `mean_context_tokens` of context on average. The batch must not be empty.

        Exact at the points of the profile. For a mixed batch see the module's docstring.
        """
        if not prefills:
            return self.decode_s(decode_batch, mean_context_tokens)
        rows, prefills_s = self._prefills_s(prefills)
        if not decode_batch:
            return prefills_s
        prefill_s = self._prefill_line.at
        decodes_s = self.decode_s(decode_batch, mean_context_tokens)
        more_rows_s = prefill_s(rows + decode_batch) - prefill_s(rows)
        reading_kv_s = max(0.0, decodes_s - prefill_s(decode_batch))
        return prefills_s + max(more_rows_s + reading_kv_s, decodes_s - self.smallest_iteration_s)

    def _prefills_s(self, prefills: Sequence[tuple[int, int]]) -> tuple[int, float]:
        """The rows of all prefills, and the lesser of two bounds: several prompts together take no longer than one
        after another, and no longer than one prompt with all their tokens, which has more context to attend to. A chunk
        costs what it adds to its prompt, and at least as much as a prompt of its length.
        """
        prefill_s = self._prefill_line.at
        rows = 0
        apart_s = behind_s = 0.0
        for from_token, to_token in prefills:
            tokens = to_token - from_token
            rows += tokens
            alone_s = own_s = prefill_s(tokens)
            if from_token:
                own_s = max(alone_s, prefill_s(to_token) - prefill_s(from_token))
            apart_s += own_s
            behind_s += own_s - alone_s
        return rows, apart_s if len(prefills) == 1 else min(apart_s, prefill_s(rows) + behind_s)
