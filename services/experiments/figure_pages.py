"""The look of pages of panels, and their files: SVG, which stays sharp and is smaller than PNG. The same page gives the
same bytes: no date is in them, and ids come from a fixed salt.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "svg.hashsalt": "fastserve",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "font.size": 9,
}
"""For `mpl.rc_context`, around all of a page."""

PICTURE_SUFFIX = ".svg"
"""The one kind of picture that is written."""

PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
"""Writes a tick without powers of ten."""


def name_log_ticks(axis: Axis, span: float, wide: float) -> None:
    """Plain numbers on a log axis; one that spans less than `wide` names the 2s and 5s too."""
    if span < wide:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())


def write_page(page: Figure, title: str, caption: str, out: Path, name: str) -> Path:
    """Puts title and caption on a page, writes it, closes it and returns the path."""
    page.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    page.supxlabel(caption, x=0.01, ha="left", fontsize=8, color="#555555")
    path = out / f"{name}{PICTURE_SUFFIX}"
    page.savefig(path, metadata={"Date": None})
    plt.close(page)
    return path
