"""The scripts that time decisions, turn by turn with plans that are recalled, and the simulator."""

import pytest

from benchmarks import simulator_speed
from benchmarks.router_decision import RoutedTurns
from benchmarks.scheduler_decision import decisions_us
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig

DECISIONS = 400
"""Enough that jobs end, for which plans are recalled."""


@pytest.mark.parametrize("policy", list(PolicyName))
def test_every_policys_decisions_are_timed_with_fewer_and_with_more_jobs_than_a_batch(policy: PolicyName) -> None:
    for queued in (3, 40):
        times_us = decisions_us(SchedulerConfig(policy=policy, max_batch=8), queued, DECISIONS)
        assert len(times_us) == DECISIONS
        assert all(taken_us > 0 for taken_us in times_us)


def test_a_router_of_two_groups_is_timed_at_arrivals_and_iterations() -> None:
    turns = RoutedTurns(SchedulerConfig(policy=PolicyName.GITTINS, max_batch=8))
    for _ in range(40):
        turns.arrive(0.0)
    for number in range(DECISIONS):
        turns.iterate(number % 2, number * 0.02)
    assert len(turns.arrivals_us) >= 40
    assert len(turns.iterations_us) == DECISIONS


def test_the_simulator_is_timed_under_both_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator_speed, "JOBS", 60)
    for policy, kv_policy in simulator_speed.SERVED:
        assert simulator_speed.timed(policy, kv_policy, output_tokens=30)["iterations"] >= 60 * 30 / 16
