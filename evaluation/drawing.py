"""Draws figures: one colour a system everywhere, lines named at their ends, the load above every axis of rates.

The same evaluation gives the same bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from evaluation.panel_metrics import GAPS
from evaluation.results import Evaluation, Point
from evaluation.systems import COLOURS, DASHED, LIMIT_DEFAULT_LABEL, SKIP_JOIN
from evaluation.values import Axis, Figure, Panel, PanelKind, System
from services.experiments.figure_pages import PLAIN, STYLE, name_log_ticks, write_page

GAPS_SUFFIX = "-gaps"

_PANEL_INCHES = (4.7, 3.5)
_CAPTION_CHARACTERS_AN_INCH = 15.5
_TITLE_CHARACTERS_AN_INCH = 9.0
_WIDE = 300
"""A log axis that spans less names the 2s and 5s too."""
_NEAR_LOAD_1 = 0.5
"""A sweep that ends below this is drawn without the line of load 1, which would squeeze it."""
_LABEL_HEIGHT = 0.062
"""The least distance of two labels, as a share of the axes' height."""

_LEGEND = "Dashed: SRPT, which knows all lengths. Dotted upright: load 1. Simulated."

_AXIS_LABELS = {
    Axis.LOAD: "jobs/s",
    Axis.RATE: "jobs/s",
    Axis.CV: "CV of the gaps between arrivals",
    Axis.THETA: "theta of the lengths (greater: more skewed)",
    Axis.RATIO: "prompt tokens / output tokens",
    Axis.IDLE_SLOTS: "idle slots K",
    Axis.QUANTUM_RATIO: "quantum ratio",
    Axis.STAGES: "pipeline stages",
    Axis.BATCH: "largest batch",
}
_LOG_AXES = (Axis.CV, Axis.RATIO, Axis.QUANTUM_RATIO, Axis.STAGES, Axis.BATCH)
_SPLIT = (
    ("before the first iteration", "#c9ccd1", "queue_s", None),
    ("in iterations", "#30638e", "executing_s", None),
    ("KV being brought back", "#d1495b", "upload_s", None),
    ("waiting in between", "#edae49", "preempted_s", "upload_s"),
)
"""The parts of a job's time: name, colour, the number, and the number that is a part of it and drawn apart."""


def _label_of(system: System, panel: Panel) -> str:
    """The default limit is named where it is what the panel varies."""
    limits = {each.starvation_limit_s for each in panel.systems}
    return LIMIT_DEFAULT_LABEL if system == SKIP_JOIN and len(limits) > 1 else system.label


def apart(fractions: Sequence[float]) -> list[float]:
    """Ascending heights, moved apart as little as keeps labels from overlapping."""
    heights: list[float] = []
    for fraction in fractions:
        heights.append(max(fraction, heights[-1] + _LABEL_HEIGHT) if heights else fraction)
    excess = max((heights[-1] - 1.0), 0.0) if heights else 0.0
    for place in range(len(heights) - 1, -1, -1):
        ceiling = 1.0 if place == len(heights) - 1 else heights[place + 1] - _LABEL_HEIGHT
        heights[place] = min(heights[place], ceiling) if excess else heights[place]
    return heights


def _name_lines(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names beside the right ends of the lines: (value, text, colour)."""
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted(
        (float(to_axes.transform((axes.get_xlim()[1], value))[1]), text, colour) for value, text, colour in ends
    )
    for height, (_, text, colour) in zip(apart([fraction for fraction, _, _ in placed]), placed, strict=True):
        axes.text(1.015, height, text, transform=axes.transAxes, color=colour, fontsize=8, va="center", ha="left")


def _scale_x(axes: Axes, panel: Panel, points: Sequence[Point]) -> None:
    axes.set_xlabel(_AXIS_LABELS[panel.axis])
    if panel.axis in (Axis.LOAD, Axis.RATE):
        capacity = points[0].rate_per_s / points[0].load

        def to_load(rate: Any) -> Any:
            return rate / capacity

        def to_rate(load: Any) -> Any:
            return load * capacity

        top = axes.secondary_xaxis("top", functions=(to_load, to_rate))
        top.set_xlabel("load (of FCFS's capacity)", fontsize=8)
        top.tick_params(labelsize=8)
        if points[-1].load >= _NEAR_LOAD_1:
            axes.axvline(capacity, color="#b0b0b0", lw=1, ls=(0, (1, 2)))
        return
    if panel.axis in _LOG_AXES:
        axes.set_xscale("log", base=2)
    ticks = [point.x for point in points]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)


def _scale_y(axes: Axes, panel: Panel) -> None:
    axes.set_ylabel(panel.metric.label)
    if panel.metric.log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        name_log_ticks(axes.yaxis, high / low, _WIDE)
    else:
        axes.set_ylim(bottom=0.0)
    if panel.metric.percent:
        axes.set_ylim(0.0, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _draw_lines(axes: Axes, evaluation: Evaluation, panel: Panel) -> None:
    by_rate = panel.axis in (Axis.LOAD, Axis.RATE)
    ends: list[tuple[float, str, str]] = []
    for system in panel.systems:
        points = evaluation.points(panel, system)
        colour = COLOURS[system.label]
        xs = [point.rate_per_s if by_rate else point.x for point in points]
        means = [point.mean for point in points]
        style = (0, (4, 2)) if system.label in DASHED else "-"
        axes.plot(xs, means, color=colour, ls=style, lw=1.9, marker="o", ms=3.5)
        if len(evaluation.scale.seeds) > 1:
            least, most = [point.least for point in points], [point.most for point in points]
            axes.fill_between(xs, least, most, color=colour, alpha=0.15, lw=0)
        if isfinite(means[-1]) and (means[-1] > 0 or not panel.metric.log):
            ends.append((means[-1], _label_of(system, panel), colour))
    _scale_x(axes, panel, evaluation.points(panel, panel.systems[0]))
    if panel.limit is not None:
        axes.axhline(panel.limit, color="black", lw=0.9, ls=":")
        axes.annotate(
            f"{panel.limit:g} s", (0.01, panel.limit), xycoords=("axes fraction", "data"), fontsize=7.5, va="bottom"
        )
    _scale_y(axes, panel)
    _name_lines(axes, ends)


def split_of(evaluation: Evaluation, panel: Panel, system: System, x: float) -> dict[str, float]:
    """Mean seconds of a job by what it did in them; together its completion time."""
    parts: dict[str, float] = {}
    for text, _, number, apart_from_it in _SPLIT:
        seconds = evaluation.point(panel, system, x, number).mean
        less = evaluation.point(panel, system, x, apart_from_it).mean if apart_from_it is not None else 0.0
        parts[text] = max(seconds - less, 0.0)
    return parts


def _draw_time_split(axes: Axes, evaluation: Evaluation, panel: Panel) -> None:
    """A bar a system at the panel's last point, the first system on top."""
    x = evaluation.scale.of(panel.points)[-1]
    names = [_label_of(system, panel) for system in panel.systems]
    lefts = [0.0] * len(names)
    splits = [split_of(evaluation, panel, system, x) for system in panel.systems]
    for text, colour, _, _ in _SPLIT:
        widths = [split[text] for split in splits]
        axes.barh(names, widths, left=lefts, color=colour, label=text, height=0.62)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for row, (system, length) in enumerate(zip(panel.systems, lefts, strict=True)):
        offloaded_gb = evaluation.point(panel, system, x, "offloaded_gb").mean
        seconds = f"{length:,.0f} s" if length >= 100 else f"{length:.3g} s"
        text = seconds + (f", {offloaded_gb:,.0f} GB offloaded" if offloaded_gb >= 1 else "")
        axes.annotate(text, (length, row), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.invert_yaxis()
    axes.set_xlim(0, max(lefts) * 1.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(panel.metric.label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.35, -0.17), ncols=2, fontsize=7.5, frameon=False)


_DRAWERS: Mapping[PanelKind, Callable[[Axes, Evaluation, Panel], None]] = {
    PanelKind.LINES: _draw_lines,
    PanelKind.TIME_SPLIT: _draw_time_split,
}


def caption_of(evaluation: Evaluation, figure: Figure) -> str:
    """What is below the picture: the figure's own caption and the scale."""
    seeds = len(evaluation.scale.seeds)
    spread = f"{seeds} seeds: lines are means, bands go from the least to the greatest" if seeds > 1 else "one seed"
    jobs = " or ".join(
        f"{evaluation.scale.jobs * factor:,}" for factor in sorted({panel.job_factor for panel in figure.panels})
    )
    return f"{figure.caption} {_LEGEND} {jobs} jobs a run, {spread}."


def draw(evaluation: Evaluation, figure: Figure, out: Path) -> Path:
    """Write the figure's picture; its path."""
    columns = min(figure.columns, len(figure.panels))
    rows = ceil(len(figure.panels) / columns)
    width, height = columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1] + 0.9
    with mpl.rc_context(STYLE):
        page, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
        cells = [axes for row in grid for axes in row]
        for axes, panel in zip(cells, figure.panels, strict=False):
            axes.set_title(panel.title)
            _DRAWERS[panel.kind](axes, evaluation, panel)
        for axes in cells[len(figure.panels) :]:
            axes.set_axis_off()
        title = fill(f"{figure.title} ({figure.shows})", int(width * _TITLE_CHARACTERS_AN_INCH))
        caption = fill(caption_of(evaluation, figure), int(width * _CAPTION_CHARACTERS_AN_INCH))
        return write_page(page, title, caption, out, figure.name)


def gaps_of(figure: Figure) -> Figure:
    """The figure's runs once more, by the gaps inside streams: a panel for each pair of a sweep and a metric."""
    sweeps = {panel.sweep: panel for panel in reversed(figure.panels) if panel.kind is PanelKind.LINES}
    panels = tuple(
        replace(panel, title=f"{panel.title}: {name}", metric=metric, limit=None)
        for metric, name in zip(GAPS, ("gaps", "worst gaps"), strict=True)
        for panel in reversed(sweeps.values())
    )
    return replace(
        figure,
        name=f"{figure.name}{GAPS_SUFFIX}",
        title=f"{figure.title}: gaps inside streams",
        panels=panels,
        columns=max(len(sweeps), 1),
    )
