"""The picture of live against simulated: a mark for every trace and pair of policies, on the diagonal where the
simulator is right. A colour for each trace, a marker for each pair; the same result gives the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.truth_comparison import MOST_JCT_OFF, PICTURE, Compared, Measured, compared
from services.experiments.figure_pages import STYLE, name_log_ticks, write_page

_COLOURS = ("#d1495b", "#30638e", "#3d9970", "#edae49", "#8e5aa8", "#4a4e57")
_MARKERS = ("o", "^", "s", "D", "v", "P")
_INCHES = (9.4, 6.2)
_CAPTION_CHARACTERS = 150
_MARGIN = 1.35
"""Room around the marks, as a factor."""
_NARROW = 100
"""A log axis that spans less names the 2s and 5s too."""
_PANELS = (
    ("large", "mean_jct_s", "Mean job completion, s"),
    ("upper", "mean_ttft_s", "Mean first token, s"),
    ("lower", "mean_per_output_token_s", "Mean per output token, s"),
)


def _draw_marks(
    axes: Axes, figures: Sequence[Compared], colours: Mapping[str, str], markers: Mapping[tuple[str, str], str]
) -> None:
    """Marks with the range of the repeats, the diagonal and its band. Zeros can't be shown on log axes."""
    shown = [each for each in figures if each.simulated > 0 and min(each.live) > 0]
    for each in shown:
        below, above = each.live_mean - min(each.live), max(each.live) - each.live_mean
        axes.errorbar(
            each.simulated,
            each.live_mean,
            yerr=[[below], [above]],
            color=colours[each.trace],
            marker=markers[each.pair],
            ms=6,
            lw=1.2,
            capsize=2,
            mec="white",
            mew=0.6,
        )
    values = [value for each in shown for value in (each.simulated, *each.live)] or [1.0]
    ends = [min(values) / _MARGIN, max(values) * _MARGIN]
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axes.plot(ends, ends, color="#808080", lw=1, zorder=1)
    low, high = ([end * (1 + sign * MOST_JCT_OFF) for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color="#808080", alpha=0.15, lw=0, zorder=1)
    for axis in (axes.xaxis, axes.yaxis):
        name_log_ticks(axis, ends[1] / ends[0], _NARROW)


def _keys(colours: Mapping[str, str], markers: Mapping[tuple[str, str], str]) -> list[Patch | Line2D]:
    by_trace = [Patch(color=colour, label=trace) for trace, colour in colours.items()]
    by_pair = [
        Line2D([], [], color="#4a4e57", marker=marker, ls="", label=" + ".join(pair))
        for pair, marker in markers.items()
    ]
    return [*by_trace, *by_pair]


def _caption(measured: Measured) -> str:
    repeats = len(measured["runs"][0]["live"])
    return fill(
        "Simulated (across) against live (up), both axes logarithmic. Bars: from the least to the greatest of "
        f"{repeats} live run(s); the mark is their mean. Grey: the diagonal, and {MOST_JCT_OFF:.0%} to either side. "
        f"Model {measured['model']} on {measured['threads']} thread(s), batch {measured['server']['max_batch']}.",
        _CAPTION_CHARACTERS,
    )


def draw_truth(measured: Measured, out: Path) -> Path:
    """Writes the picture and returns its path."""
    traces = [trace["name"] for trace in measured["traces"]]
    pairs = list(dict.fromkeys(tuple(run["pair"]) for run in measured["runs"]))
    colours, markers = dict(zip(traces, _COLOURS, strict=False)), dict(zip(pairs, _MARKERS, strict=False))
    with mpl.rc_context(STYLE):
        page = plt.figure(figsize=_INCHES, layout="constrained")
        grid = page.subplot_mosaic([["large", "upper"], ["large", "lower"]], width_ratios=[2, 1])
        for place, figure, title in _PANELS:
            _draw_marks(grid[place], compared(measured, figure), colours, markers)
            grid[place].set_title(title)
        grid["large"].set_xlabel("simulated")
        grid["large"].set_ylabel("live")
        grid["large"].legend(handles=_keys(colours, markers), loc="upper left", fontsize=8, frameon=False)
        return write_page(page, "What the simulator says and what happened", _caption(measured), out, PICTURE)
