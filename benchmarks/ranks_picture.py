"""The timeline of a group of stages: a bar for every plan while a stage computes it, a colour for each lane."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from services.experiments.figure_pages import STYLE, write_page

PICTURE = "ranks"
_COLOURS = ("#30638e", "#edae49", "#3d9970", "#d1495b")
_INCHES = (9.4, 2.6)
_BAR_HEIGHT = 0.7


def draw_timeline(measured: dict[str, Any], out: Path) -> Path:
    """Writes the picture and returns its path."""
    stages = measured["timeline"]
    with mpl.rc_context(STYLE):
        page, axes = plt.subplots(figsize=_INCHES, layout="constrained")
        for number, spans in enumerate(stages):
            axes.broken_barh(
                [(start_s, end_s - start_s) for _, start_s, end_s in spans],
                (number - _BAR_HEIGHT / 2, _BAR_HEIGHT),
                facecolors=[_COLOURS[plan % measured["lanes"] % len(_COLOURS)] for plan, _, _ in spans],
                edgecolor="white",
                lw=0.4,
            )
        axes.set_yticks(range(len(stages)), [f"stage {number}" for number in range(len(stages))])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        busy = ", ".join(f"{share:.1%}" for share in measured["groups"]["pp 2"]["busy_shares"])
        caption = (
            f"Two stages of model {measured['model']} on a core each, saturated. A bar is a plan in a stage, a colour "
            f"a batch; {measured['lanes']} are under way. Busy: {busy}."
        )
        return write_page(page, "Two stages at work", caption, out, PICTURE)
