"""Runs of one trace under several systems, repeated, side by side in words and tables. The systems are given by their
labels; the first is the one that the others are compared with.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from rich.table import Table
from rich.text import Text

from services.workloads.repeated_runs import Result, Spread, spread_of

Runs = Mapping[str, Sequence[Result]]
"""The results of each system's runs, by its label."""

_DISTRIBUTIONS = {
    "jct_s": "job completion",
    "ttft_s": "first token",
    "per_output_token_s": "per output token",
    "worst_gap_s": "worst gap of a job",
}
_STATISTICS = {"mean": "mean", "p99": "P99"}
_COUNTERS = (
    ("jobs", "", "jobs", 1, 0),
    ("failed jobs", "", "failed", 1, 0),
    ("duration, s", "", "duration_s", 1, 1),
    ("output tokens/s", "", "output_tokens_per_s", 1, 0),
    ("iterations", "scheduler", "iterations", 1, 0),
    ("preemptions", "scheduler", "preemptions", 1, 0),
    ("promotions", "scheduler", "promotions", 1, 0),
    ("MB offloaded", "kv", "offloaded_bytes", 1e6, 0),
    ("MB uploaded", "kv", "uploaded_bytes", 1e6, 0),
    ("tokens recomputed", "kv", "recomputed_tokens", 1, 0),
    ("worker stalled by copies, s", "kv", "stall_s", 1, 2),
    ("worker without a plan, s", "scheduler", "plan_wait_s", 1, 2),
)
"""Text, section of the result, name, unit, decimals."""
_SAME = "="


def _factor(before: Spread | None, after: Spread | None) -> Text:
    """How much sooner, in green; below 1 and red if later."""
    if before is None or after is None:
        return Text("-")
    factor = after.times_less_than(before)
    if factor is None:
        return Text(_SAME, "dim")
    return Text(f"{factor:.2f}x", "bold green" if factor > 1 else "red")


def _shown(value: Spread | None) -> str:
    return "-" if value is None else f"{value.median:.3f} ({value.least:.3f}-{value.greatest:.3f})"


def latency_table(runs: Runs) -> Table:
    """Mean and P99 of every distribution: median, least and greatest of the runs, and how much sooner than the first
    system's.
    """
    first, *others = runs
    table = Table(
        title=f"seconds, from the scheduled arrival: the median run (from the least to the greatest)\n"
        f"2.00x: twice as soon as {first}; {_SAME}: no difference beyond the spread of runs"
    )
    table.add_column("")
    table.add_column("system", no_wrap=True)
    for text in _STATISTICS.values():
        table.add_column(text, justify="right", no_wrap=True)
        table.add_column("", justify="right", no_wrap=True)
    for field, text in _DISTRIBUTIONS.items():
        before = {statistic: spread_of(runs[first], field, statistic) for statistic in _STATISTICS}
        for label, results in runs.items():
            cells: list[str | Text] = []
            for statistic in _STATISTICS:
                measured = spread_of(results, field, statistic)
                cells += [_shown(measured), "" if label == first else _factor(before[statistic], measured)]
            table.add_row(text if label == first else "", label, *cells, end_section=label == (others or [first])[-1])
    return table


def counter_table(runs: Runs) -> Table:
    """Counters of each system, the medians of its runs: preemptions, bytes moved, tokens recomputed, stalls."""
    table = Table(title="what it took: the median of the runs")
    table.add_column("")
    for label in runs:
        table.add_column(label, justify="right")
    for text, section, name, unit, decimals in _COUNTERS:
        values = [
            median((result[section] if section else result)[name] / unit for result in results)
            for results in runs.values()
        ]
        table.add_row(text, *(f"{value:.{decimals}f}" for value in values))
    return table


def _told(text: str, before: Spread | None, after: Spread | None) -> tuple[float | None, str]:
    """By which factor a figure is less, None for no difference; and that in words: `mean job completion 2.1x sooner
    (0.30 s, not 0.64 s)`.
    """
    if before is None or after is None:
        return None, f"{text} not measured"
    factor = after.times_less_than(before)
    if factor is None:
        same = f"{text} no different ({after.median:.2f} s and {before.median:.2f} s, within the spread of runs)"
        return None, same
    change = f"{factor:.1f}x sooner" if factor > 1 else f"{1 / factor:.1f}x LATER"
    return factor, f"{text} {change} ({after.median:.2f} s, not {before.median:.2f} s)"


def headline(runs: Runs, ours: str) -> tuple[bool, str]:
    """Whether a system beats the first one: its jobs complete sooner on average, and those of the tail not later. And
    the sentence that says by how much.
    """
    first = next(iter(runs))

    def told(text: str, field: str, statistic: str) -> tuple[float | None, str]:
        return _told(text, *(spread_of(runs[label], field, statistic) for label in (first, ours)))

    mean, mean_text = told("mean job completion", "jct_s", "mean")
    tail, tail_text = told("its P99", "jct_s", "p99")
    _, first_text = told("mean first token", "ttft_s", "mean")
    won = mean is not None and mean > 1 and (tail is None or tail > 1)
    lead = f"{ours} beats {first}" if won else f"{ours} does NOT beat {first} here"
    return won, f"{lead}: {mean_text}; {tail_text}; {first_text}."
