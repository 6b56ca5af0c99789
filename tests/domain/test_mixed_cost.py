"""The cost model's error against measured mixed iterations."""

import pytest

from services.domain.mixed_cost import MixedCost, ModelError, model_error


def points(*errors: float) -> list[MixedCost]:
    """Points that took 2 s each."""
    return [MixedCost(64 + number, 4, 256, 2.0, 2.0 * (1 + error)) for number, error in enumerate(errors)]


def test_a_model_that_gives_less_than_was_measured_has_an_error_below_0() -> None:
    assert MixedCost(64, 4, 256, seconds=2.0, modelled_seconds=1.5).error == -0.25
    assert MixedCost(64, 4, 256, seconds=2.0, modelled_seconds=3.0).error == 0.5


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((0.25,), ModelError(0.25, 0.25)),
        ((0.25, -0.5, 0.0), ModelError(0.0, -0.5)),
        ((0.5, -0.25, 0.125, 0.0), ModelError(0.0625, 0.5)),
    ],
)
def test_the_median_and_the_error_farthest_from_0_are_told(errors: tuple[float, ...], expected: ModelError) -> None:
    assert model_error(points(*errors)) == expected
