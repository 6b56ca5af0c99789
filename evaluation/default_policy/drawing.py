"""The pictures of the page: what decides whether preemption pays; the default policy over FCFS everywhere; and the
curve of its one trade.
"""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from evaluation.default_policy.cells import (
    CURVE_CELLS,
    FCFS_RECOMPUTE,
    GITTINS,
    GITTINS_SHARES,
    SKIP_JOIN,
    SRPT,
    WAVE_CELLS,
    Contender,
)
from evaluation.default_policy.judging import MOST_JOBS, Verdict
from evaluation.default_policy.results import Results
from services.experiments.figure_pages import PLAIN, STYLE, write_page

COLOURS = {SKIP_JOIN: "#30638e", GITTINS: "#d1495b", SRPT: "#3d9970"}
DRAWN = (SKIP_JOIN, GITTINS, SRPT)
_FCFS_COLOUR = "#4a4e57"
_LIMITS = "Limits: first token within 2 s, then 0.1 s a token on average. Simulated."
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5)


def _mean(verdict: Verdict, contender: Contender) -> float:
    return verdict.of(contender).mean


def _lines(axes: Axes, title: str, names: Sequence[str], verdicts: Sequence[Verdict]) -> None:
    """Mean completion time over that of the best FCFS, for one verdict after the other."""
    for contender in DRAWN:
        style = "--" if contender is SRPT else "-"
        values = [_mean(verdict, contender) for verdict in verdicts]
        axes.plot(range(len(values)), values, style, color=COLOURS[contender], marker="o", label=contender.label)
    axes.axhline(1.0, color=_FCFS_COLOUR, linewidth=1)
    axes.set_yscale("log")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_ylim(0.05, 5)
    axes.minorticks_off()
    axes.set_xticks(range(len(names)), names)
    axes.set_title(title)


def draw_when(verdicts: Sequence[Verdict], out: Path) -> Path:
    """A panel for each thing that decides."""
    of = {(verdict.cell.title, verdict.load): verdict for verdict in verdicts}
    panels = (
        (
            "spread of lengths (Zipf, load 1)",
            [(f"Zipf {theta}, CV 4", 1.0, str(theta)) for theta in (1.1, 1.4, 1.6, 1.8)],
        ),
        ("burstiness (Zipf 1.4, load 0.9)", [(f"Zipf 1.4, CV {cv}", 0.9, f"CV {cv}") for cv in (1, 2, 4, 8)]),
        ("load (real chats)", [("conv, batch 64", load, f"{load:g}") for load in (0.8, 0.95, 1.1, 1.3)]),
        ("batch (real chats, load 1.1)", [(f"conv, batch {batch}", 1.1, str(batch)) for batch in (16, 64, 256)]),
        (
            "memory: a quarter of the need",
            [
                ("conv, batch 64, a quarter of the KV", 0.9, "chats"),
                ("code, a quarter of the KV", 0.8, "code"),
                ("Zipf 1.1, CV 4, a quarter of the KV", 0.8, "Zipf 1.1"),
                ("Zipf 1.6, CV 4, a quarter of the KV", 0.8, "Zipf 1.6"),
            ],
        ),
        (
            "lengths known before (code, load)",
            [("code", load, f"{load:g}") for load in (0.8, 1.0, 1.3)],
        ),
    )
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(2, ceil(len(panels) / 2), figsize=(12, 6.4), layout="constrained")
        for axes, (title, places) in zip(grid.flat, panels, strict=True):
            _lines(axes, title, [name for *_, name in places], [of[cell, load] for cell, load, _ in places])
        grid.flat[0].legend(frameon=False)
        caption = "Mean job completion time over that of the best FCFS (line at 1; below is better). Simulated."
        return write_page(page, "When preemption pays", caption, out, "when-preemption-pays")


def draw_everywhere(verdicts: Sequence[Verdict], out: Path) -> Path:
    """Every verdict as one row: the paper's policy and ours over the best FCFS."""
    with mpl.rc_context(STYLE):
        page, axes = plt.subplots(figsize=(9, 0.19 * len(verdicts) + 1.5), layout="constrained")
        for row, verdict in enumerate(reversed(verdicts)):
            for contender in (SKIP_JOIN, GITTINS):
                axes.plot(_mean(verdict, contender), row, "o", color=COLOURS[contender], markersize=4)
            axes.plot([_mean(verdict, SKIP_JOIN), _mean(verdict, GITTINS)], [row, row], color="#cccccc", zorder=0)
        names = [f"{verdict.cell.title}, load {verdict.load:g}" for verdict in reversed(verdicts)]
        axes.set_yticks(range(len(names)), names, fontsize=6.5)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(PLAIN)
        axes.set_xticks(_TICKS)
        axes.minorticks_off()
        axes.axvline(1.0, color=_FCFS_COLOUR, linewidth=1)
        axes.margins(y=0.01)
        for contender in (SKIP_JOIN, GITTINS):
            axes.plot([], [], "o", color=COLOURS[contender], label=contender.label)
        axes.legend(loc="upper right", frameon=True)
        caption = "Mean job completion time over that of the best FCFS (line at 1; left is better). Simulated."
        return write_page(page, "Never the wrong choice?", caption, out, "everywhere")


def draw_waves(verdicts: Sequence[Verdict], out: Path) -> Path:
    """How many jobs are within the limits as the load of a wave grows."""
    colours = COLOURS | {FCFS_RECOMPUTE: _FCFS_COLOUR, GITTINS_SHARES: COLOURS[GITTINS]}
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(1, len(WAVE_CELLS), figsize=(12, 3.6), layout="constrained", sharey=True)
        for axes, cell in zip(grid, WAVE_CELLS, strict=True):
            of_cell = [verdict for verdict in verdicts if verdict.cell == cell]
            for contender, colour in colours.items():
                withins = [verdict.of(contender).within for verdict in of_cell]
                style = "--" if contender in (SRPT, GITTINS_SHARES) else "-"
                axes.plot(cell.loads, withins, style, color=colour, marker="o", markersize=3, label=contender.label)
            axes.axhline(MOST_JOBS, color="#cccccc", zorder=0)
            axes.set_xlabel("load")
            axes.set_title(cell.title)
        grid[0].set_ylabel("jobs within the limits")
        grid[0].legend(frameon=False)
        setting = "Arrivals 60 % up and down, batch 256. The line is at 95 %; share 1 is --first-token-share 1."
        caption = f"{setting} {_LIMITS}"
        return write_page(page, "Waves", caption, out, "waves")


def draw_curve(results: Results, out: Path) -> Path:
    """What a larger share of the server's time for first tokens buys, and costs."""
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(1, len(CURVE_CELLS), figsize=(9, 3.6), layout="constrained")
        for axes, cell in zip(grid, CURVE_CELLS, strict=True):
            (load,) = cell.loads
            base_s = results.mean(cell, load, FCFS_RECOMPUTE, "mean_s")
            shares = [one for one in cell.contenders if one.share is not None]
            means = [results.mean(cell, load, one, "mean_s") / base_s for one in shares]
            withins = [results.mean(cell, load, one, "within") for one in shares]
            axes.plot(means, withins, marker="o", color=COLOURS[GITTINS])
            for one, mean, within in zip(shares, means, withins, strict=True):
                axes.annotate(f"{one.share:g}", (mean, within), textcoords="offset points", xytext=(5, -10), fontsize=8)
            axes.plot(1.0, results.mean(cell, load, FCFS_RECOMPUTE, "within"), "s", color=_FCFS_COLOUR)
            axes.set_xlabel("mean completion time over FCFS's")
            axes.set_ylabel("jobs within the limits")
            axes.set_title(f"real chats, batch {cell.batch}, load {load:g}")
        caption = f"Each point is a value of --first-token-share; the square is FCFS. {_LIMITS}"
        return write_page(page, "First tokens against completion times", caption, out, "first-token-share")
