"""How many worker groups there are over time, under each rule that scales them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from services.experiments.figure_pages import STYLE, write_page

PICTURE, LIVE_PICTURE = "scaling", "live_scaling"
_WIDTH, _ROW_HEIGHT, _FRAME_HEIGHT = 9.4, 1.1, 0.9
_BURST = "#f2e3c9"
_COLOURS = ("#30638e", "#edae49", "#3d9970", "#d1495b")
_SIMULATED = "#777777"

Run = dict[str, Any]


def groups_over_time(spans: list[list[float]]) -> tuple[list[float], list[int]]:
    """Seconds at which the number of pods changes, and the number from then on."""
    changes = sorted((at_s, by) for _, from_s, to_s in spans for at_s, by in ((from_s, 1), (to_s, -1)))
    times_s, counts, count = [], [], 0
    for at_s, by in changes:
        count += by
        times_s.append(at_s)
        counts.append(count)
    return times_s, counts


def draw_groups(measured: dict[str, Any], out: Path) -> Path:
    """Writes the picture of the simulated rules and returns its path."""
    shown = [
        (run, None) for run in measured["runs"] if run["spans"] and run["lengths"] == measured["runs"][0]["lengths"]
    ]
    caption = f"Worker groups over time, simulated: {measured['profile']}, one trace of long jobs under every rule."
    return _drawn(measured, shown, "Groups that come and go under bursts", caption, out, PICTURE)


def draw_live_groups(measured: dict[str, Any], out: Path) -> Path:
    """Writes the picture of the rules that ran live, over the same simulated, and returns its path."""
    half = len(measured["runs"]) // 2
    pairs = zip(measured["runs"][:half], measured["runs"][half:], strict=True)
    shown = [(live, simulated) for live, simulated in pairs if simulated["spans"]]
    caption = "Worker groups over time, live and (grey) simulated: one trace under both rules."
    return _drawn(measured, shown, "Groups that come and go under bursts, live", caption, out, LIVE_PICTURE)


def _drawn(
    measured: dict[str, Any],
    shown: Sequence[tuple[Run, Run | None]],
    title: str,
    caption: str,
    out: Path,
    name: str,
) -> Path:
    """A row for each run, with another one behind it."""
    size = (_WIDTH, _FRAME_HEIGHT + _ROW_HEIGHT * len(shown))
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(len(shown), 1, sharex=True, squeeze=False, figsize=size, layout="constrained")
        rows = [row[0] for row in grid]
        for axes, (run, behind), colour in zip(rows, shown, _COLOURS, strict=False):
            for from_s, to_s in measured["bursts"]:
                axes.axvspan(from_s, to_s, color=_BURST, lw=0)
            if behind is not None:
                axes.step(*groups_over_time(behind["spans"]), where="post", color=_SIMULATED, lw=1, ls="--")
            axes.step(*groups_over_time(run["spans"]), where="post", color=colour)
            axes.set_ylim(0, measured["most_groups"] + 0.5)
            axes.set_yticks(range(measured["most_groups"] + 1))
            axes.set_ylabel(
                f"{run['rule']}\n{run['group_s']:.0f} group-s\nmean JCT {run['mean_jct_s']:.1f} s", fontsize=7
            )
        rows[-1].set_xlabel("seconds; bursts are shaded")
        return write_page(page, title, caption, out, name)
