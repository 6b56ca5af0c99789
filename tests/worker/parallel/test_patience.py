"""How long a stage is waited for: not at all longer than the limit, but for long plans and a process's first."""

import pytest

from services.worker.parallel.stage_links import FADING, FIRST_PATIENCE_S, LONG_ROWS, PATIENCE, Patience

LONG = 10 * LONG_ROWS


def test_the_first_plan_and_the_first_long_one_have_time_to_load_what_they_need() -> None:
    patience = Patience()
    assert patience.seconds(1) == FIRST_PATIENCE_S
    patience.took(1, 0.1)
    assert patience.seconds(1) == 0.0
    assert patience.seconds(LONG) == FIRST_PATIENCE_S


def test_a_long_plan_is_waited_for_in_proportion_to_its_rows() -> None:
    patience = Patience()
    patience.took(LONG, 4.0)
    assert patience.seconds(LONG) == pytest.approx(PATIENCE * 4.0)
    assert patience.seconds(2 * LONG) == pytest.approx(PATIENCE * 8.0)
    assert patience.seconds(LONG_ROWS - 1) == 0.0


def test_a_plan_that_was_slow_once_is_soon_forgotten() -> None:
    patience = Patience()
    patience.took(LONG, 100.0)
    for _ in range(3):
        patience.took(LONG, 1.0)
    assert patience.seconds(LONG) == pytest.approx(PATIENCE * 100.0 * FADING**3)
    patience.took(LONG, 80.0)
    assert patience.seconds(LONG) == pytest.approx(PATIENCE * 80.0)
