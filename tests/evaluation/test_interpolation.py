"""The rate that a system sustains, read off a sweep."""

from math import sqrt

import pytest

from evaluation.interpolation import Bound, Known, sustained_rate


def test_a_rate_is_read_off_where_latency_crosses_the_limit_as_if_it_grew_exponentially() -> None:
    rate = sustained_rate([(1.0, 0.1), (2.0, 0.9)], limit=0.3)
    assert rate.value == pytest.approx(1.5)
    assert rate.bound is Bound.EXACT


def test_a_measured_point_on_the_limit_is_the_rate() -> None:
    assert sustained_rate([(1.0, 0.1), (2.0, 0.3), (3.0, 3.0)], limit=0.3).value == pytest.approx(2.0)


def test_a_sweep_that_never_crosses_says_so() -> None:
    points = [(1.0, 0.1), (2.0, 0.2)]
    assert sustained_rate(points, limit=0.3) == Known(2.0, Bound.AT_LEAST)
    assert sustained_rate(points, limit=0.05) == Known(1.0, Bound.AT_MOST)


def test_the_last_crossing_counts() -> None:
    points = [(1.0, 0.5), (2.0, 0.1), (3.0, 10.0)]
    assert sustained_rate(points, limit=1.0).value == pytest.approx(2.5)


def test_a_number_that_is_zero_before_the_crossing_is_interpolated_in_a_straight_line() -> None:
    assert sustained_rate([(1.0, 0.0), (2.0, 0.4)], limit=0.1).value == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("better", "worse", "ratio"),
    [
        (Bound.EXACT, Bound.EXACT, Bound.EXACT),
        (Bound.AT_LEAST, Bound.EXACT, Bound.AT_LEAST),
        (Bound.EXACT, Bound.AT_MOST, Bound.AT_LEAST),
        (Bound.AT_LEAST, Bound.AT_MOST, Bound.AT_LEAST),
        (Bound.EXACT, Bound.AT_LEAST, Bound.AT_MOST),
        (Bound.AT_MOST, Bound.EXACT, Bound.AT_MOST),
        (Bound.AT_LEAST, Bound.AT_LEAST, Bound.OPEN),
        (Bound.AT_MOST, Bound.AT_MOST, Bound.OPEN),
        (Bound.OPEN, Bound.EXACT, Bound.OPEN),
    ],
)
def test_a_ratio_is_known_no_better_than_its_parts(better: Bound, worse: Bound, ratio: Bound) -> None:
    assert Known(3.0, better).over(Known(2.0, worse)) == Known(1.5, ratio)


def test_a_steeper_rise_moves_the_crossing_down() -> None:
    flat, steep = (sustained_rate([(1.0, 0.1), (2.0, top)], limit=0.2).value for top in (0.1 * sqrt(10), 10.0))
    assert steep < flat
