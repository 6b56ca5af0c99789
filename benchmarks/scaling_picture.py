"""How many worker groups there are over time, under each rule that scales them."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from services.experiments.figure_pages import STYLE, write_page

PICTURE = "scaling"
_INCHES = (9.4, 4.2)
_BURST = "#f2e3c9"
_COLOURS = ("#30638e", "#edae49", "#3d9970", "#d1495b")


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
    """Writes the picture and returns its path."""
    shown = [run for run in measured["runs"] if run["spans"]]
    bursts = measured["bursts"]
    with mpl.rc_context(STYLE):
        page, rows = plt.subplots(len(shown), 1, sharex=True, figsize=_INCHES, layout="constrained")
        for axes, run, colour in zip(rows, shown, _COLOURS, strict=False):
            for from_s, to_s in bursts:
                axes.axvspan(from_s, to_s, color=_BURST, lw=0)
            axes.step(*groups_over_time(run["spans"]), where="post", color=colour)
            axes.set_ylim(0, measured["most_groups"] + 0.5)
            axes.set_ylabel(
                f"{run['rule']}\n{run['group_s']:.0f} group-s\nmean JCT {run['mean_jct_s']:.1f} s", fontsize=7
            )
        rows[-1].set_xlabel("seconds; bursts are shaded")
        caption = f"Worker groups over time, simulated: {measured['profile']}, one trace under every rule."
        return write_page(page, "Groups that come and go under bursts", caption, out, PICTURE)
