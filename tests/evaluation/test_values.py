"""Scales, points and the runs of panels."""

import pytest

from evaluation.panel_metrics import JCT
from evaluation.paper_v1 import OPT_13B
from evaluation.systems import REACTIVE, SKIP_JOIN
from evaluation.values import FULL, MAIN, QUICK, Axis, Panel, Points, Scale
from tests.evaluation.tiny_evaluation import SHORT, TINY


@pytest.mark.parametrize(("scale", "jobs", "seeds"), [(QUICK, 120, 1), (MAIN, 1000, 1), (FULL, 3000, 3)])
def test_the_three_sets_have_their_jobs_and_seeds(scale: Scale, jobs: int, seeds: int) -> None:
    assert scale.jobs == jobs
    assert len(scale.seeds) == seeds


def test_a_smaller_set_keeps_both_ends_of_an_axis() -> None:
    points = Points((0.3, 0.6, 0.9, 1.2), (2.0,))
    two = Scale("two", jobs=1, seeds=(0,), most_points=2, full=False)
    assert two.of(points) == (0.3, 1.2)
    assert MAIN.of(points) == points.main
    assert FULL.of(points) == (0.3, 0.6, 0.9, 1.2, 2.0)


def test_only_systems_with_idle_slots_run_for_each_number_of_them() -> None:
    panel = Panel("K", Axis.IDLE_SLOTS, Points((0, 8)), OPT_13B, SHORT, (REACTIVE, SKIP_JOIN), JCT)
    assert len(set(panel.runs(TINY))) == len(TINY.seeds) * (1 + 2)
