"""The results of simulations side by side: a table for people, a CSV for other programs. No I/O.

A simulation that got stuck has no figures: it is counted in a separate column, and means are over the others.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from services.experiments.cases import PolicyPair, SimulationCase, SweepPoint
from services.experiments.runs import Content, Stuck

WIDE_COLUMNS = 120
"""Terminals with fewer columns get fewer figures; all are in the files."""

_SECONDS = {
    "jct_s": ("mean", "p95"),
    "ttft_s": ("mean", "p95"),
    "per_output_token_s": ("mean", "p95"),
    "worst_gap_s": ("p95",),
}
_NARROW_SECONDS = {
    "jct_s": ("mean", "p95"),
    "ttft_s": ("mean",),
    "per_output_token_s": ("mean",),
    "worst_gap_s": ("p95",),
}
_HEADS = {"jct_s": "JCT", "ttft_s": "TTFT", "per_output_token_s": "per token", "worst_gap_s": "worst gap"}
_STATISTICS = ("mean", "p50", "p95", "p99", "max")
_DISTRIBUTIONS = ("jct_s", "ttft_s", "per_output_token_s", "inter_token_s", "worst_gap_s")


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A case and its outcome: the content of its result, or why it got stuck."""

    case: SimulationCase
    outcome: Content | Stuck

    @property
    def stuck(self) -> Stuck | None:
        """Why it got stuck; None if it did not."""
        return self.outcome if isinstance(self.outcome, Stuck) else None

    @property
    def content(self) -> dict[str, Any]:
        """The result of a run that did not get stuck."""
        assert not isinstance(self.outcome, Stuck), self.outcome
        return self.outcome

    @property
    def load(self) -> float | None:
        """Arrivals relative to what FCFS sustains, if that was measured."""
        load: float | None = self.content["config"].get("load")
        return load

    @property
    def mean_jct_s(self) -> float | None:
        """None if no job ended well."""
        mean_s: float | None = self.content["jct_s"]["mean"]
        return mean_s


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):{form}}" if known else "-"


def _spread(values: Sequence[float | None], form: str = ".3f") -> str:
    """The mean over seeds, and below it the least and the greatest if there are several."""
    known = [value for value in values if value is not None]
    extremes = [f"{min(known):{form}}", f"{max(known):{form}}"] if len(known) > 1 else []
    return "\n".join([_mean(values, form), *extremes])


def _groups(runs: Sequence[SimulatedRun]) -> dict[tuple[SweepPoint, PolicyPair], list[SimulatedRun]]:
    """Runs that differ in their seeds only, in the order of the cases."""
    groups: dict[tuple[SweepPoint, PolicyPair], list[SimulatedRun]] = {}
    for run in runs:
        groups.setdefault((run.case.point, run.case.variant), []).append(run)
    return groups


def _gain(before: Sequence[SimulatedRun], after: Sequence[SimulatedRun]) -> str:
    """By which factor the mean JCT is shorter than the first variant's, over the seeds that both have."""
    was_s = {run.case.seed: run.mean_jct_s for run in before}
    pairs = [(was_s.get(run.case.seed), run.mean_jct_s) for run in after]
    return _spread([was / now if was and now else None for was, now in pairs], ".2f")


def table(runs: Sequence[SimulatedRun], wide: bool = True) -> Table:
    """One row per point and variant; in seconds unless a column says otherwise."""
    groups = _groups(runs)
    first = runs[0].case
    swept = any(point.axis for point, _ in groups)
    compared = len({variant for _, variant in groups}) > 1
    seeds = len({run.case.seed for run in runs})
    spread = f" (mean, least and greatest of {seeds} seeds)" if seeds > 1 else ""
    made = Table(
        title=f"seconds, simulated on {first.config['profile']}{spread}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    if swept:
        made.add_column(first.point.axis, justify="right")
    made.add_column("policy", no_wrap=True)
    shown = _SECONDS if wide else _NARROW_SECONDS
    heads = ["load", *(f"{_HEADS[name]}\n{one}" for name, ones in shown.items() for one in ones)]
    heads += (["times\nsooner"] if compared else []) + (["pre-\nempted", "GB\nmoved", "failed"] if wide else [])
    some_stuck = any(run.stuck for run in runs)
    for head in [*heads, *(["stuck"] if some_stuck else [])]:
        made.add_column(head, justify="right", no_wrap=True)
    ended = {place: [run for run in group if run.stuck is None] for place, group in groups.items()}
    for (point, variant), group in ended.items():
        baseline = next(other for (place, _), other in ended.items() if place == point)
        stuck_count = len(groups[point, variant]) - len(group)
        made.add_row(
            *([point.shown] if swept else []),
            f"{variant.policy}\n{variant.kv_policy}",
            _mean([run.load for run in group], ".2f"),
            *(_spread([run.content[name][one] for run in group]) for name, ones in shown.items() for one in ones),
            *([_gain(baseline, group)] if compared else []),
            *(_counts(group) if wide else []),
            *([str(stuck_count)] if some_stuck else []),
            end_section=compared and variant == list(groups)[-1][1],
        )
    return made


def _counts(group: Sequence[SimulatedRun]) -> list[str]:
    """Means over seeds of preemptions, GB moved and failed jobs."""
    return [
        _mean([run.content["scheduler"]["preemptions"] for run in group], ".0f"),
        _mean([_moved_gb(run) for run in group], ".2f"),
        _mean([run.content["failed"] for run in group], ".0f"),
    ]


def _moved_gb(run: SimulatedRun) -> float:
    kv = run.content["kv"]
    return float(kv["offloaded_bytes"] + kv["uploaded_bytes"]) / 1e9


def summary_csv(runs: Sequence[SimulatedRun]) -> list[str]:
    """A line of names, then one line per run; a run that got stuck has its reason and no figures."""
    rows = [_row(run) for run in runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, max(rows, key=len), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().splitlines()


def _row(run: SimulatedRun) -> dict[str, object]:
    case = run.case
    place: dict[str, object] = {
        "axis": case.point.axis,
        "value": case.point.value if case.point.axis else "",
        "policy": case.variant.policy,
        "kv_policy": case.variant.kv_policy,
        "seed": case.seed,
        "stuck": "" if run.stuck is None else run.stuck.reason,
    }
    if run.stuck is not None:
        return place
    content = run.content
    return (
        place
        | {"load": "" if run.load is None else run.load}
        | {name: content[name] for name in ("jobs", "failed", "duration_s", "output_tokens_per_s")}
        | {f"{name}.{one}": content[name][one] for name in _DISTRIBUTIONS for one in _STATISTICS}
        | {**content["scheduler"], **content["kv"], "peak_kv_tokens": content["simulated"]["peak_kv_tokens"]}
    )
