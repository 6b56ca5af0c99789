"""The pictures of an evaluation."""

from itertools import pairwise

from evaluation.drawing import apart, caption_of, gaps_of, split_of
from evaluation.panel_metrics import GAPS
from evaluation.paper_n26 import SWAPS
from evaluation.systems import SKIP_JOIN
from evaluation.values import FULL, MAIN, Run
from tests.evaluation.made_evaluations import made


def test_the_picture_of_gaps_has_each_sweep_once_by_both_measures() -> None:
    panels = gaps_of(SWAPS).panels
    assert [panel.metric for panel in panels] == list(GAPS)
    assert {panel.sweep for panel in panels} == set(SWAPS.sweeps)


def test_a_jobs_time_has_a_part_for_kv_that_is_being_brought_back() -> None:
    def numbers(run: Run) -> dict[str, float]:
        return {"queue_s": 1.0, "executing_s": 2.0, "preempted_s": 7.0, "upload_s": 3.0}

    panel = SWAPS.panel("a job's time")
    split = split_of(made(MAIN, (SWAPS,), lambda run: 10.0, numbers), panel, SKIP_JOIN, 1.5)
    assert split == {
        "before the first iteration": 1.0,
        "in iterations": 2.0,
        "KV being brought back": 3.0,
        "waiting in between": 4.0,
    }


def test_labels_never_overlap_and_stay_beside_the_axes() -> None:
    for fractions in ([0.1, 0.1, 0.1, 0.9], [0.97, 0.98, 0.99, 1.0], [0.5]):
        heights = apart(fractions)
        assert all(above - below > 0.06 for below, above in pairwise(heights))
        assert max(heights) <= 1.0


def test_a_caption_is_the_figures_own_and_the_scale() -> None:
    caption = caption_of(made(FULL, (SWAPS,), lambda run: 1.0), SWAPS)
    assert caption.startswith(SWAPS.caption)
    assert caption.endswith("3,000 jobs a run, 3 seeds: lines are means, bands go from the least to the greatest.")
