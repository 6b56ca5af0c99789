"""Spans of time: their total length, and the overlap of two sets of spans."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class TimeSpan(NamedTuple):
    """A span of time in seconds."""

    begin_s: float
    end_s: float


def union(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    """The times covered by at least one span, as ascending, disjoint spans."""
    joined: list[TimeSpan] = []
    for span in sorted(spans):
        if joined and span.begin_s <= joined[-1].end_s:
            joined[-1] = TimeSpan(joined[-1].begin_s, max(joined[-1].end_s, span.end_s))
        else:
            joined.append(span)
    return joined


def total_s(spans: Iterable[TimeSpan]) -> float:
    """The sum of the lengths."""
    return sum(span.end_s - span.begin_s for span in spans)


def overlap_s(some: Sequence[TimeSpan], others: Sequence[TimeSpan]) -> float:
    """The total time covered by both; both must be results of `union`."""
    overlap = 0.0
    at = 0
    for span in some:
        while at < len(others) and others[at].end_s <= span.begin_s:
            at += 1
        here = at
        while here < len(others) and others[here].begin_s < span.end_s:
            overlap += min(span.end_s, others[here].end_s) - max(span.begin_s, others[here].begin_s)
            here += 1
    return overlap
