"""A server on which everything takes three times as long as its cost model says decides as one whose model is right."""

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.scheduler.scheduler_config import PolicyName
from services.simulator.simulation import simulate
from tests.simulator.simulated_servers import GROWING_COST, mean_jct_s, random_jobs, server

TIMES = 3.0


def three_times(cost: CostProfile) -> CostProfile:
    return CostProfile(
        tuple(PrefillCost(point.tokens, TIMES * point.seconds) for point in cost.prefill),
        tuple(DecodeCost(point.batch, point.context_tokens, TIMES * point.seconds) for point in cost.decode),
    )


def test_the_default_policy_finds_out_how_long_iterations_take_here() -> None:
    jobs = random_jobs(3, 1200, 8.0, longest=400)
    slow = server(PolicyName.GITTINS, cost=GROWING_COST, slowdown=TIMES, max_batch=16)
    true = server(PolicyName.GITTINS, cost=three_times(GROWING_COST), max_batch=16)
    slow_s, true_s = (mean_jct_s(simulate(setup, jobs)) for setup in (slow, true))
    assert slow_s < 1.05 * true_s
