"""Side by side with other engines: figures of rounds in which the systems took turns, compared and told. Pure.

A ratio is taken within each round, since the speed of a shared machine drifts, and told by its median with the least
and the greatest. Above 1 it is in our favour, for job completion times too. The best peer is the one with the best
median. A peer that is far behind the best of all in a round is not measured again: it can't be the best peer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least
from services.workloads.repeated_runs import Spread, spread

OURS = "fastserve"
FAR_BEHIND = 1.6
"""Times worse than the best."""

Values = Mapping[str, Sequence[float]]
"""The figures of each system, round by round."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured, whether less of it is better, and by how much the best peer should be beaten, by model."""

    name: str
    title: str
    unit: str
    less_is_better: bool
    asked: Mapping[str, float]

    def advantage(self, of: float, over: float) -> float:
        """How many times better a figure is than another."""
        return over / of if self.less_is_better else of / over

    @property
    def digits(self) -> int:
        """Decimals that figures are told with."""
        return 2 if self.less_is_better else 0


MEASURES = (
    Measure("offline", "all jobs at once", "output tokens/s", False, {"S": 1.2, "M": 1.05}),
    Measure("decode", "decode of one stream", "tokens/s", False, {"S": 1.2, "M": 1.05}),
    Measure("prefill", "prefill of 512", "tokens/s", False, {"S": 1.2, "M": 1.2}),
    Measure("jct", "mean JCT at 2 jobs/s", "s", True, {"M": 1.2}),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours and the best peer's figures, and how many times better ours are."""

    best_peer: str
    ours: Spread
    peer: Spread
    advantage: Spread
    rounds: int


def far_behind(measure: Measure, values: Values) -> set[str]:
    """The peers whose last figure is far behind the best of all last ones."""
    last = {name: figures[-1] for name, figures in values.items() if figures}
    if not last:
        return set()
    best = min(last.values()) if measure.less_is_better else max(last.values())
    return {name for name, figure in last.items() if name != OURS and measure.advantage(best, figure) > FAR_BEHIND}


def compared(measure: Measure, values: Values) -> Comparison | None:
    """Ours against the best peer, round by round; None while either is missing."""
    medians = {name: spread(figures).median for name, figures in values.items() if figures}
    peers = [name for name in medians if name != OURS]
    if OURS not in medians or not peers:
        return None
    choose = min if measure.less_is_better else max
    best = choose(peers, key=lambda name: medians[name])
    pairs = list(zip(values[OURS], values[best], strict=False))
    advantage = spread([measure.advantage(ours, peer) for ours, peer in pairs])
    return Comparison(best, spread(values[OURS]), spread(values[best]), advantage, len(pairs))


def with_spread(one: Spread, digits: int) -> str:
    """`412 (398 to 420)`; a single figure alone."""
    middle = f"{one.median:.{digits}f}"
    return middle if one.least == one.greatest else f"{middle} ({one.least:.{digits}f} to {one.greatest:.{digits}f})"


def _cells(measured: Mapping[str, Any]) -> list[tuple[str, Measure, Values]]:
    """The measures that were taken, by model."""
    return [
        (preset, measure, model["measures"][measure.name]["values"])
        for preset, model in measured["models"].items()
        for measure in MEASURES
        if measure.name in model["measures"]
    ]


def goals(measured: Mapping[str, Any]) -> list[Goal]:
    """The goals of the comparisons that were made."""
    made = []
    for preset, measure, values in _cells(measured):
        comparison = compared(measure, values)
        if comparison is not None and preset in measure.asked:
            text = f"{preset}: {measure.title}, times better than {measured['systems'][comparison.best_peer]}"
            made.append(at_least(text, comparison.advantage.median, measure.asked[preset]))
    return made


def _figures_table(measured: Mapping[str, Any], preset: str) -> Table:
    cells = [(measure, values) for model, measure, values in _cells(measured) if model == preset]
    heading = ("system", *(f"{measure.title}, {measure.unit}" for measure, _ in cells))
    rows = [
        (
            title,
            *(
                with_spread(spread(values[name]), measure.digits) if values.get(name) else "-"
                for measure, values in cells
            ),
        )
        for name, title in measured["systems"].items()
        if any(values.get(name) for _, values in cells)
    ]
    return Table(f"Side by side, model {preset}, {measured['dtype']}: median (least to greatest)", heading, rows)


def _ratios_table(measured: Mapping[str, Any]) -> Table:
    rows = []
    for preset, measure, values in _cells(measured):
        comparison = compared(measure, values)
        if comparison is not None:
            rows.append(
                (
                    f"{preset}: {measure.title}",
                    measured["systems"][comparison.best_peer],
                    with_spread(comparison.advantage, 2),
                    f"{measure.asked[preset]:g}" if preset in measure.asked else "-",
                    str(comparison.rounds),
                )
            )
    note = "Ratios within each round; above 1, FastServe is better. A single figure was measured in one round."
    return Table("FastServe against the best peer", ("", "best peer", "times better", "asked", "rounds"), rows, note)


def _shares(values: Sequence[float], bounds: Sequence[float]) -> Spread:
    """Figures as shares of their bounds."""
    return spread([value / bound for value, bound in zip(values, bounds, strict=True)])


def _roofline_table(measured: Mapping[str, Any]) -> Table:
    rows = []
    for preset, measure, values in _cells(measured):
        comparison = compared(measure, values)
        model = measured["models"][preset]
        bound = model.get("bounds", {}).get(f"{measure.name}_tokens_per_s")
        asked, busy = measure.asked.get(preset), model.get("worker_busy_shares")
        if comparison is None or bound is None or asked is None or comparison.advantage.median >= asked:
            continue
        best = comparison.best_peer
        beside = model["measures"][measure.name].get("bounds_beside")
        if beside is None:  # for many streams, and in results of earlier versions, the best of the sitting
            beside = {name: [bound] * len(values[name]) for name in (OURS, best)}
        ours, peer = _shares(values[OURS], beside[OURS]), _shares(values[best], beside[best])
        rows.append(
            (
                f"{preset}: {measure.title}",
                with_spread(spread(beside[OURS]), 0),
                f"{ours.median:.0%}",
                f"{peer.median:.0%}",
                f"{asked * peer.median:.0%}",
                f"{spread(busy).median:.0%}" if measure.name == "offline" and busy else "-",
            )
        )
    rates = [model["rates"] for model in measured["models"].values() if model.get("rates")]
    note = ""
    if rates:
        note = (
            f"Bounds from {max(rate['read_bytes_per_s'] for rate in rates) / 1e9:.0f} GB/s read and "
            f"{max(rate['product_flop_per_s'] for rate in rates) / 1e9:.0f} GFLOP/s of products, the most that torch "
            "reached before the first round or after one: a decode reads all weights once, a prefill and jobs all at "
            "once do their products. "
            "Where a bound has a spread, it was measured before and after each turn, and the shares are of that. "
            "Weights that fit into the caches are read faster than that. The last column is the share of the time "
            "in which FastServe's worker was in an iteration; the rest of it goes to the services, the rest of the "
            "bound to the iteration itself: attention, norms, sampling, and weights read for few jobs."
        )
    heading = ("missed", "bound, tokens/s", "FastServe", "best peer", "asked", "FastServe's worker computes")
    return Table("Misses, as shares of what the machine allows", heading, rows, note)


def tables(measured: Mapping[str, Any]) -> list[Table]:
    """This part of the summary."""
    made = [_figures_table(measured, preset) for preset in measured["models"]]
    made.append(_ratios_table(measured))
    roofline = _roofline_table(measured)
    made += [roofline] if roofline.rows else []
    if measured["missing"]:
        rows = [(measured["systems"][name], why) for name, why in measured["missing"].items()]
        made.append(Table("Left out", ("peer", "reason"), rows))
    return made


def merged(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured now, and of what was measured before the measures that are not in it. A measure of a model is
    kept or replaced whole: figures of two sittings are not compared. Whether a peer runs the same model is kept for
    those that were not asked now. A peer that was missing is so no longer once it was measured.
    """
    if before is None:
        return dict(now)
    models: dict[str, Any] = {}
    for preset in sorted({*before["models"], *now["models"]}, reverse=True):
        old, new = before["models"].get(preset, {"measures": {}}), now["models"].get(preset, {"measures": {}})
        models[preset] = {**old, **new, "measures": {**old["measures"], **new["measures"]}}
        if "agreement" in old or "agreement" in new:
            models[preset]["agreement"] = {**old.get("agreement", {}), **new.get("agreement", {})}
    seen = {name for model in now["models"].values() for cell in model["measures"].values() for name in cell["values"]}
    missing = {name: why for name, why in before["missing"].items() if name not in seen} | now["missing"]
    systems = {**before["systems"], **now["systems"]}
    return {**before, **now, "systems": systems, "missing": missing, "models": models}
