"""A picture of the dashboard, drawn from the answers of Prometheus to the panels' queries."""

import math
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter

from deploy.grafana.live_check import filled_in
from deploy.grafana.panels import ROWS, Panel
from deploy.grafana.prometheus_process import RunningPrometheus

ACROSS = 3
WIDTH_INCHES, HEIGHT_INCHES = 14.0, 2.3
MOST_LEGEND = 8
_UNITS = {"s": "s", "Bps": "B/s", "bytes": "B", "reqps": "/s", "ops": "/s", "short": ""}


def legend_of(template: str, labels: dict[str, str]) -> str:
    """A legend with the labels' values, as Grafana fills it in."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()


def _number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else math.nan


def _draw(axes: Axes, panel: Panel, prometheus: RunningPrometheus, from_s: float, to_s: float) -> None:
    times = [from_s + second for second in range(int(to_s - from_s) + 1)]
    lines: list[tuple[str, list[float]]] = []
    for query in panel.queries:
        for one in prometheus.series(filled_in(query), from_s, to_s):
            found: dict[int, float] = {round(at - from_s): _number(text) for at, text in one["values"]}
            lines.append(
                (legend_of(query.legend, one["metric"]), [found.get(at, math.nan) for at in range(len(times))])
            )
    lines.sort(key=lambda line: (len(line[0]), line[0]))
    seconds = range(len(times))
    if panel.stacked:
        heights = [[0.0 if math.isnan(value) else value for value in values] for _, values in lines]
        axes.stackplot(seconds, heights, labels=[name for name, _ in lines], alpha=0.7)
    else:
        for name, values in lines:
            axes.plot(seconds, values, label=name, linewidth=1.3)
    axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold")
    axes.set_xlim(0, len(times))
    axes.set_ylim(0, panel.most)
    percent = panel.unit == "percentunit"
    axes.yaxis.set_major_formatter(PercentFormatter(1.0) if percent else EngFormatter(_UNITS[panel.unit]))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    shown, names = axes.get_legend_handles_labels()
    axes.legend(shown[:MOST_LEGEND], names[:MOST_LEGEND], fontsize=6, loc="upper left", ncols=2, framealpha=0.6)


def draw_dashboard(prometheus: RunningPrometheus, from_s: float, to_s: float, path: Path) -> None:
    """All rows of panels, over this stretch of time, as a PNG."""
    heights = [-(-len(row.panels) // ACROSS) for row in ROWS]
    size = (WIDTH_INCHES, HEIGHT_INCHES * sum(heights))
    figure = pyplot.figure(figsize=size, layout="constrained")
    parts: Any = figure.subfigures(len(ROWS), 1, height_ratios=heights)
    for part, row, height in zip(parts, ROWS, heights, strict=True):
        part.suptitle(row.title, fontsize=11, x=0.01, ha="left")
        grid = part.subplots(height, ACROSS, squeeze=False).flatten()
        for axes, panel in zip(grid, row.panels, strict=False):
            _draw(axes, panel, prometheus, from_s, to_s)
        for axes in grid[len(row.panels) :]:
            axes.set_axis_off()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
