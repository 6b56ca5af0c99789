"""The table of all verdicts, and the page for readers: prose written by hand, whose numbers are filled in from the
results.

In the page `{{mean|CELL|LOAD|CONTENDER}}` becomes how many times the mean completion time of the best FCFS a contender
has; `gain` its inverse; `p95`, `p99`, `throughput`, `within`, `silence_s` and `moved_gb` likewise; `fcfs_mean_s`,
`fcfs_p99_s` and `fcfs_within` are those of the best FCFS itself, without a contender. `{{rate|CELL|CONTENDER}}` becomes
how many times the rate at which 95 % of the jobs are within the limits is FCFS's.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from evaluation.default_policy.cells import FCFS_RECOMPUTE
from evaluation.default_policy.judging import SHOWN, Standing, Verdict, most_load

PAGE = Path(__file__).with_name("page.txt")
_PLACE = re.compile(r"\{\{([^{}]+)\}\}")
_OF_FCFS: dict[str, Callable[[Verdict], str]] = {
    "fcfs_mean_s": lambda verdict: f"{verdict.mean_s:.1f} s",
    "fcfs_p99_s": lambda verdict: f"{verdict.p99_s:.1f} s",
    "fcfs_within": lambda verdict: f"{verdict.within:.0%}",
    "fcfs_form": lambda verdict: verdict.best.label,
}
_OF_CONTENDER: dict[str, Callable[[Standing], str]] = {
    "mean": lambda one: f"{one.mean:.2f}x",
    "gain": lambda one: f"{1 / one.mean:.1f}x",
    "p95": lambda one: f"{one.p95:.2f}x",
    "p95_gain": lambda one: f"{1 / one.p95:.1f}x",
    "p99": lambda one: f"{one.p99:.2f}x",
    "throughput": lambda one: f"{one.throughput:.2f}x",
    "within": lambda one: f"{one.within:.0%}",
    "silence_s": lambda one: f"{one.silence_s:.1f} s",
    "moved_gb": lambda one: f"{one.moved_gb:,.0f} GB",
}


class PageError(Exception):
    """The page asks for a number that the results do not have."""


def filled(text: str, verdicts: Sequence[Verdict]) -> str:
    """The page with its numbers. Raises PageError naming the place."""
    by_place = {(verdict.cell.title, f"{verdict.load:g}"): verdict for verdict in verdicts}

    def number(match: re.Match[str]) -> str:
        what, cell, *rest = match[1].split("|")
        try:
            if what == "rate":
                return _rate([verdict for verdict in verdicts if verdict.cell.title == cell], *rest)
            load, *contender = rest
            verdict = by_place[cell, load]
            if what in _OF_FCFS:
                return _OF_FCFS[what](verdict)
            standing = next(one for one in verdict.standings if one.contender.label == contender[0])
            return _OF_CONTENDER[what](standing)
        except (KeyError, IndexError, StopIteration, ValueError, TypeError):
            raise PageError(f"no such number: {match[0]}") from None

    return _PLACE.sub(number, text)


def _rate(verdicts: Sequence[Verdict], label: str) -> str:
    """Over that of the FCFS that recomputes. Raises StopIteration or ValueError if the results do not tell."""
    one = next(standing.contender for standing in verdicts[0].standings if standing.contender.label == label)
    loads = [most_load(verdicts, contender) for contender in (one, FCFS_RECOMPUTE)]
    ours, fcfs = (load for load in loads if load is not None)
    return f"{ours / fcfs:.2f}x"


def table(verdicts: Sequence[Verdict]) -> str:
    """Every verdict as a row of Markdown; what is missed in the last column."""
    head = ("workload", "load", "best FCFS", "mean s", "P99 s", "within")
    columns = [*head, *(f"{one.label}: mean, P99, within, silence" for one in SHOWN), "missed by gittins"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for verdict in verdicts:
        place = (verdict.cell.title, f"{verdict.load:g}", verdict.best.label)
        own = (f"{verdict.mean_s:.2f}", f"{verdict.p99_s:.1f}", f"{verdict.within:.1%}")
        shown = {one.contender: _cell(one) for one in verdict.standings}
        beside = [shown.get(one, "") for one in SHOWN]
        lines.append("| " + " | ".join([*place, *own, *beside, "; ".join(verdict.misses)]) + " |")
    return "\n".join(lines)


def _cell(one: Standing) -> str:
    return f"{one.mean:.2f}x {one.p99:.2f}x {one.within:.1%} {one.silence_s:.1f} s"


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts hold."""
    missed = [verdict for verdict in verdicts if verdict.misses]
    return f"Of {len(verdicts)} points {len(verdicts) - len(missed)} hold in all that is asked."
