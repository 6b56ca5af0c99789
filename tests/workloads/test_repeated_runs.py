"""Figures of repeated runs: what counts as a difference."""

import pytest

from services.workloads.repeated_runs import Result, Spread, middle_run, soonest, spread, spread_of


def run(mean_s: float | None, p99_s: float | None = None) -> Result:
    return {"jct_s": {"mean": mean_s, "p99": p99_s}}


def test_a_spread_is_the_median_between_the_least_and_the_greatest() -> None:
    assert spread([3.0, 1.0, 2.5]) == Spread(2.5, 1.0, 3.0)
    assert spread([3.0, 1.0]) == Spread(2.0, 1.0, 3.0)
    assert spread_of([run(1.0, 5.0), run(2.0, 4.0)], "jct_s", "p99") == Spread(4.5, 4.0, 5.0)


def test_what_some_run_lacks_has_no_spread() -> None:
    assert spread_of([run(1.0), run(None)], "jct_s", "mean") is None
    assert spread_of([], "jct_s", "mean") is None


def test_a_difference_inside_the_spread_is_none() -> None:
    assert Spread(1.0, 0.9, 1.5).times_less_than(Spread(2.0, 1.5, 3.0)) is None
    assert Spread(2.0, 1.5, 3.0).times_less_than(Spread(1.0, 0.9, 1.5)) is None


def test_a_difference_beyond_the_spread_is_the_factor_of_the_medians() -> None:
    assert Spread(1.0, 0.9, 1.4).times_less_than(Spread(2.0, 1.5, 3.0)) == 2.0
    assert Spread(2.0, 1.5, 3.0).times_less_than(Spread(1.0, 0.9, 1.4)) == 0.5


def test_a_small_difference_is_none_even_if_all_runs_agree() -> None:
    assert Spread(1.0, 1.0, 1.0).times_less_than(Spread(1.04, 1.04, 1.04)) is None
    assert Spread(1.04, 1.04, 1.04).times_less_than(Spread(1.0, 1.0, 1.0)) is None
    assert Spread(1.0, 1.0, 1.0).times_less_than(Spread(1.06, 1.06, 1.06)) == pytest.approx(1.06)


def test_there_is_no_factor_over_nothing() -> None:
    assert Spread(0.0, 0.0, 0.0).times_less_than(Spread(1.0, 1.0, 1.0)) is None


def test_the_middle_run_has_the_median_mean_and_is_the_better_of_two() -> None:
    assert middle_run([run(3.0), run(1.0), run(2.0)]) == 2
    assert middle_run([run(3.0), run(1.0)]) == 1
    assert middle_run([run(None), run(9.0), run(1.0)]) == 1


def test_the_soonest_system_has_the_least_median_of_means_and_the_first_of_ties_is_taken() -> None:
    assert soonest({"a": [run(2.0)], "b": [run(1.0), run(1.5)], "c": [run(None)]}) == "b"
    assert soonest({"a": [run(1.0)], "b": [run(1.0)]}) == "a"
