"""Cells of workloads unlike those that the default policy was made for (other_lengths.py), four of each kind: arrivals,
server and load are drawn. No constant was chosen on them. Pure.
"""

from random import Random

from evaluation.default_policy.cells import A100, H100, Cell, judged_by
from evaluation.default_policy.other_lengths import OTHER_LENGTHS
from evaluation.default_policy.traffic import Shape

EACH = 4
JOBS = 3000
FIRST_SEED = 1000
"""Other seeds than those of the other cells."""
TOGETHER, RUSH_RATE = 64, 3.2
"""Jobs that come at once, where they come in groups; the rate of the middle over that of the beginning and the end,
where there is a rush.
"""


def other_cell(number: int) -> Cell:
    """The cell of a number."""
    kind = list(OTHER_LENGTHS)[number // EACH]
    draw = Random(f"others/{number}")
    arrivals, together, cv, rush = draw.choice(
        [
            ("CV 1", 1, 1.0, 1.0),
            ("CV 4", 1, 4.0, 1.0),
            (f"groups of {TOGETHER}", TOGETHER, 1.0, 1.0),
            ("a rush", 1, 1.0, RUSH_RATE),
        ]
    )
    shape = Shape(kind, JOBS, cv=cv, together=together, rush=rush)
    profile, batch = draw.choice([H100, A100]), draw.choice([16, 32, 64, 128])
    pool, load = draw.choice(["ample", "ample", "quarter"]), draw.choice([0.7, 0.8, 0.9, 1.0, 1.15, 1.3])
    title = f"{number}: {kind}, {arrivals}, {profile}, batch {batch}"
    title += ", a quarter of the KV" if pool == "quarter" else ""
    return Cell(title, profile, batch, shape, (load,), (FIRST_SEED + number,), pool, contenders=judged_by(pool))


OTHER_CELLS = tuple(map(other_cell, range(EACH * len(OTHER_LENGTHS))))
