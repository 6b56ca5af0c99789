"""Evaluations whose numbers a test chooses: nothing is simulated."""

from collections.abc import Callable, Sequence

from services.cli.figures.evaluation import Evaluation
from services.cli.figures.measures import NUMBERS
from services.cli.figures.values import Figure, Measured, Run, Scale

CAPACITY_PER_S = 2.0

Rule = Callable[[Run], float]
"""Seconds of everything in a run."""


def made(scale: Scale, figures: Sequence[Figure], rule: Rule) -> Evaluation:
    """All runs of the figures; each of a run's numbers is what the rule says."""
    return Evaluation(
        scale, tuple(figures), {run: _measured(run, rule(run)) for figure in figures for run in figure.runs(scale)}
    )


def _measured(run: Run, value: float) -> Measured:
    load = run.traffic.load
    rate = run.traffic.rate_per_s if load is None else load * CAPACITY_PER_S
    assert rate is not None
    return Measured(CAPACITY_PER_S, rate, {**dict.fromkeys(NUMBERS, value), "failed": 0.0})
