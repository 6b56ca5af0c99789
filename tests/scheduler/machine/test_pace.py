"""How long iterations take here compared with the cost model."""

import pytest

from services.domain.cost import CostProfile
from services.domain.ids import JobId
from services.domain.protocol import PlanEntry
from services.scheduler.machine.pace import EVERY, LEAST_LOOKS, MOST, Pace
from tests.simulator.simulated_servers import GROWING_COST

DECODES = tuple(PlanEntry(JobId(f"j{number}"), 20, 21) for number in range(4))
MIXED = (PlanEntry(JobId("new"), 0, 64), *DECODES)


@pytest.fixture
def profile() -> CostProfile:
    return GROWING_COST


def paced(
    profile: CostProfile, times: float, stages: int = 1, iterations: int = EVERY * LEAST_LOOKS, together: int = 1
) -> Pace:
    """After so many iterations that each took so many times what the model says; results follow each other, so many of
    them at once.
    """
    pace = Pace()
    pace.calibrate(profile, stages)
    now_s = made_s = 0.0
    held: list[tuple[PlanEntry, ...]] = []
    for number in range(iterations):
        entries = MIXED if number % 3 == 0 else DECODES
        prefills = [(0, 64)] if entries is MIXED else []
        held.append(entries)
        now_s += times * profile.iteration_s(prefills, 4, 20.0)
        if len(held) == together:
            for entries in held:
                pace.finished(entries, made_s, now_s, together)
            held.clear()
            made_s = now_s - 0.001
    return pace


@pytest.mark.parametrize("together", [1, 4, 5])
@pytest.mark.parametrize("times", [0.5, 1.6, 3.0])
def test_it_is_the_ratio_of_the_time_between_results_to_the_models(
    profile: CostProfile, times: float, together: int
) -> None:
    factor = paced(profile, times, iterations=3 * EVERY * LEAST_LOOKS, together=together).factor
    assert factor == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize("times", [0.85, 1.0, 1.2])
def test_a_model_that_is_nearly_right_is_taken_at_its_word(profile: CostProfile, times: float) -> None:
    assert paced(profile, times).factor == 1.0


def test_it_trusts_the_model_until_it_has_seen_enough_and_never_goes_beyond_its_limits(profile: CostProfile) -> None:
    assert paced(profile, 3.0, iterations=EVERY * LEAST_LOOKS - 1).factor == 1.0
    assert paced(profile, 1000.0).factor == MOST


def test_as_many_iterations_run_at_a_time_as_there_are_stages(profile: CostProfile) -> None:
    assert paced(profile, 0.5, stages=2).factor == 1.0


def test_a_new_worker_begins_anew(profile: CostProfile) -> None:
    pace = paced(profile, 3.0)
    pace.calibrate(profile, 1)
    assert pace.factor == 1.0


def test_time_in_which_the_worker_had_nothing_to_do_does_not_count(profile: CostProfile) -> None:
    pace = Pace()
    pace.calibrate(profile, 1)
    now_s = 0.0
    for _ in range(EVERY * LEAST_LOOKS):
        made_s = now_s + 5.0
        now_s = made_s + profile.iteration_s([], 4, 20.0)
        pace.finished(DECODES, made_s, now_s, 1)
    assert pace.factor == 1.0
