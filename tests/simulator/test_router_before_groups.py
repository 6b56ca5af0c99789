"""The real router before several simulated groups."""

import pytest

from services.scheduler.routing.router import Router
from services.scheduler.scheduler_config import PolicyName
from services.simulator.outcome import Simulation
from services.simulator.server_setup import SimulatedJob
from services.simulator.simulation import simulate
from tests.simulator.simulated_servers import GROWING_COST, ended_s, mean_jct_s, random_jobs, server


def tokens_per_s(simulation: Simulation) -> float:
    """Output tokens by the time of the last one."""
    return sum(len(outcome.token_times_s) for outcome in simulation.outcomes) / simulation.duration_s


@pytest.mark.parametrize("policy", [PolicyName.GITTINS, PolicyName.FCFS])
def test_two_groups_make_at_least_1_9_times_the_tokens_of_one(policy: PolicyName) -> None:
    jobs = random_jobs(3, 1000, rate_per_s=400.0, longest=40)
    one, two = (
        simulate(server(policy, cost=GROWING_COST, device_tokens=4096, groups=groups, hop_s=0.0003), jobs)
        for groups in (1, 2)
    )
    assert tokens_per_s(two) >= 1.9 * tokens_per_s(one)
    assert mean_jct_s(two) < 0.55 * mean_jct_s(one)


def in_a_row_of_long_and_short_ones(count: int) -> list[SimulatedJob]:
    """Nobody can tell them apart: every second one makes 4 tokens instead of 200."""
    return [SimulatedJob(f"j{n}/0", 0.0, 20, 4 if n % 2 else 200, max_tokens=200) for n in range(count)]


def test_a_group_that_idles_takes_jobs_that_wait_in_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = server(PolicyName.FCFS, groups=2, max_batch=2, hop_s=0.0003)
    jobs = in_a_row_of_long_and_short_ones(40)
    moving = simulate(setup, jobs)
    monkeypatch.setattr(Router, "moves", lambda self: [])
    staying = simulate(setup, jobs)
    assert moving.duration_s < 0.65 * staying.duration_s
    for job, outcome in zip(jobs, moving.outcomes, strict=True):
        assert len(outcome.token_times_s) == job.output_tokens
        assert outcome.queue_s <= ended_s(outcome)
    assert moving.counters.recomputed_tokens == 0


def test_a_job_that_no_group_can_hold_is_refused() -> None:
    jobs = [SimulatedJob("huge", 0.0, 4000, 200), SimulatedJob("small", 0.0, 10, 2)]
    huge, small = simulate(server(groups=3), jobs).outcomes
    assert "4096" in (huge.error or "")
    assert small.error is None


def test_a_job_can_be_cancelled_in_any_group() -> None:
    jobs = [SimulatedJob(f"j{n}", 0.0, 10, 1000, cancel_s=0.5) for n in range(6)]
    outcomes = simulate(server(groups=3), jobs).outcomes
    assert {outcome.finish_reason for outcome in outcomes} == {"cancelled"}
