"""ENST, worked by hand from its definition (PAPER 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvmanager.machine.enst import enst_s, execute_s_by_level

QUANTA_S = (1.0, 2.0, 4.0)


def test_jobs_above_burn_the_quanta_of_the_levels_down_to_the_jobs_own() -> None:
    # Three jobs on level 0, two on level 1, B = 1. Level 1 waits for three quanta of level 0: 3 * 1. Level 2 waits for
    # three jobs that burn levels 0 and 1, and for two that burn level 1: 3 * (1 + 2) + 2 * 2.
    assert execute_s_by_level([3, 2, 5], QUANTA_S, 1)[:3] == [0.0, 3.0, 13.0]


def test_it_is_divided_by_the_largest_batch() -> None:
    assert execute_s_by_level([3, 2, 5], QUANTA_S, 4)[:3] == [0.0, 0.75, 3.25]


def test_jobs_of_ones_own_level_and_below_do_not_count() -> None:
    assert execute_s_by_level([0, 7, 9], QUANTA_S, 1)[:2] == [0.0, 0.0]


def test_levels_that_nobody_is_on_yet_count_as_empty() -> None:
    assert execute_s_by_level([2], QUANTA_S, 1) == [0.0, 2.0, 6.0, 14.0]


def test_without_quanta_everybodys_is_nothing() -> None:
    execute_s = execute_s_by_level([9], (), 1)
    assert enst_s(0, execute_s, 5.0, None) == 0.0


def test_a_promotion_that_comes_sooner_is_the_estimate() -> None:
    execute_s = [0.0, 3.0, 13.0, 40.0]
    assert enst_s(2, execute_s, waited_s=0.0, starvation_limit_s=None) == 13.0
    assert enst_s(2, execute_s, waited_s=2.0, starvation_limit_s=10.0) == 8.0
    assert enst_s(1, execute_s, waited_s=2.0, starvation_limit_s=10.0) == 3.0
    assert enst_s(2, execute_s, waited_s=11.0, starvation_limit_s=10.0) == 0.0


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    quanta_s=st.lists(st.floats(0.1, 10.0), min_size=6, max_size=6),
    max_batch=st.integers(1, 64),
    level=st.integers(0, 5),
)
def test_the_sum_over_levels_is_the_sum_over_jobs(
    counts: list[int], quanta_s: list[float], max_batch: int, level: int
) -> None:
    jobs_above = [above for above, count in enumerate(counts) for _ in range(count) if above < level]
    expected_s = sum(sum(quanta_s[above:level]) for above in jobs_above) / max_batch
    assert execute_s_by_level(counts, quanta_s, max_batch)[level] == pytest.approx(expected_s)
