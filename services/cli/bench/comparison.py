"""Two runs of one trace side by side, in words and tables."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

Result = Mapping[str, Any]

CLEAR_WIN = 1.1
"""A mean that is shorter by this factor is a win beyond noise."""

_DISTRIBUTIONS = {
    "jct_s": "job completion",
    "ttft_s": "first token",
    "per_output_token_s": "per output token",
    "inter_token_s": "between tokens",
    "worst_gap_s": "worst gap of a job",
}
_HEADLINES = {
    "jct_s": "jobs complete {:.1f}x sooner",
    "ttft_s": "their first token comes {:.1f}x sooner",
    "per_output_token_s": "an output token takes {:.1f}x less time",
}


def gain(before: float | None, after: float | None) -> float | None:
    """By which factor `after` is shorter; None without two positive figures."""
    return before / after if before is not None and after else None


def _gain_text(ratio: float | None) -> Text:
    if ratio is None:
        return Text("-")
    style = "bold green" if ratio >= CLEAR_WIN else "red" if ratio <= 1 / CLEAR_WIN else ""
    return Text(f"{ratio:.2f}x", style)


def latency_table(names: tuple[str, str], results: tuple[Result, Result]) -> Table:
    """Every distribution of both results, and by which factor the second is shorter."""
    table = Table(title="seconds, from the scheduled arrival")
    table.add_column("")
    for statistic in ("mean", "p50", "p95", "p99", "max"):
        table.add_column(statistic, justify="right")
    for field, text in _DISTRIBUTIONS.items():
        for name, result in zip(names, results, strict=True):
            values = result[field].values()
            table.add_row(f"{text}: {name}", *("-" if value is None else f"{value:.4f}" for value in values))
        pairs = zip(results[0][field].values(), results[1][field].values(), strict=True)
        table.add_row("  times sooner", *(_gain_text(gain(before, after)) for before, after in pairs), end_section=True)
    return table


def counter_table(names: tuple[str, str], results: tuple[Result, Result]) -> Table:
    """Counters of both results: preemptions, bytes moved, tokens recomputed, stalls."""
    table = Table(title="what it took")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")

    def row(text: str, *values: str) -> None:
        table.add_row(text, *values)

    row("jobs (failed)", *(f"{result['jobs']} ({result['failed']})" for result in results))
    row("duration", *(f"{result['duration_s']:.1f} s" for result in results))
    row("output tokens/s", *(f"{result['output_tokens_per_s']:.0f}" for result in results))
    for name in ("preemptions", "promotions", "demotions", "iterations"):
        row(name, *(f"{result['scheduler'][name]}" for result in results))
    for name, text in (("offloaded_bytes", "GB offloaded"), ("uploaded_bytes", "GB uploaded")):
        row(text, *(f"{result['kv'][name] / 1e9:.3f}" for result in results))
    row("tokens recomputed", *(f"{result['kv']['recomputed_tokens']}" for result in results))
    row("worker stalled by copies", *(f"{result['kv']['stall_s']:.2f} s" for result in results))
    row("worker without a plan", *(f"{result['scheduler']['plan_wait_s']:.2f} s" for result in results))
    return table


def headline(results: tuple[Result, Result]) -> tuple[bool, str]:
    """Whether the second won clearly on all three means, and the sentence that says how much sooner."""
    gains = {field: gain(*(result[field]["mean"] for result in results)) for field in _HEADLINES}
    parts = [text.format(ratio) for field, text in _HEADLINES.items() if (ratio := gains[field]) is not None]
    won = all(ratio is not None and ratio >= CLEAR_WIN for ratio in gains.values())
    before, after = (result["jct_s"]["p99"] for result in results)
    tail = "" if not after else f"; P99 of job completion: {before:.2f} s under FCFS, {after:.2f} s under FastServe"
    lead = "FastServe wins" if won else "FastServe does NOT win clearly here"
    return won, f"{lead}: on average {', '.join(parts)}{tail}."
