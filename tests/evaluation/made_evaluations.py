"""Evaluations whose numbers a test chooses: nothing is simulated."""

from collections.abc import Callable, Sequence

from evaluation.measures import NUMBERS
from evaluation.results import Evaluation
from evaluation.values import Figure, Measured, Run, Scale
from services.scheduler.scheduler_config import PolicyName

CAPACITY_PER_S = 2.0

Rule = Callable[[Run], float]
"""Seconds of everything in a run."""


Numbers = Callable[[Run], dict[str, float]]
"""Numbers of a run that are others than its seconds."""


def made(scale: Scale, figures: Sequence[Figure], rule: Rule, numbers: Numbers | None = None) -> Evaluation:
    """All runs of the figures; each of a run's numbers is what the rule says, but for those that `numbers` gives."""
    runs = {run for figure in figures for run in figure.runs(scale)}
    return Evaluation(
        scale, tuple(figures), {run: _measured(run, rule(run), numbers(run) if numbers else {}) for run in runs}
    )


def _measured(run: Run, value: float, numbers: dict[str, float]) -> Measured:
    load = run.traffic.load
    rate = run.traffic.rate_per_s if load is None else load * CAPACITY_PER_S
    assert rate is not None
    return Measured(
        CAPACITY_PER_S, rate, {**dict.fromkeys(NUMBERS, value), "failed": 0.0, **numbers}, run.system.kv_policy
    )


def fastserve_wins(times: float) -> Rule:
    """Everything takes `times` seconds under FCFS and static batches, one otherwise; ten times that above load 1."""

    def rule(run: Run) -> float:
        slow = run.system.policy in (PolicyName.FCFS, PolicyName.STATIC)
        overload = run.traffic.load is not None and run.traffic.load > 1
        return (times if slow else 1.0) * (10.0 if overload else 1.0)

    return rule
