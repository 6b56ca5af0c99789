"""Several batches in flight, and copies in parallel with compute, through the whole simulator."""

from itertools import pairwise

import pytest

from services.domain.copying import LinkSpeed
from services.domain.errors import InvalidFieldError
from services.domain.pipeline import Pipeline
from services.scheduler.scheduler_config import PolicyName
from services.simulator.outcome import Simulation
from services.simulator.server_setup import SimulatedJob
from services.simulator.simulation import simulate
from tests.simulator.simulated_servers import DECODE_S, GROWING_COST, PREFILL_S, ended_s, random_jobs, server

BATCH, TOKENS = 4, 50


def decoding(stages: int, jobs: int, plans_in_flight: int) -> Simulation:
    """Jobs that arrive at once and decode from their first token on."""
    trace = [SimulatedJob(f"job-{number}/0", 0.0, 1, TOKENS) for number in range(jobs)]
    setup = server(PolicyName.FCFS, stages=stages, max_batch=BATCH, plans_in_flight=plans_in_flight)
    return simulate(setup, trace)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("extra_plans", [0, 1])
def test_stages_with_as_many_plans_in_flight_have_as_many_times_the_throughput(stages: int, extra_plans: int) -> None:
    """Every stage is busy from its first plan on: each has a batch and makes a token per job and iteration time."""
    simulation = decoding(stages, stages * BATCH, stages + extra_plans)
    filling_s = DECODE_S * (stages - 1) / stages
    assert simulation.duration_s == pytest.approx(TOKENS * DECODE_S + filling_s)
    assert decoding(1, stages * BATCH, 1 + extra_plans).duration_s == pytest.approx(stages * TOKENS * DECODE_S)
    assert simulation.counters.preemptions == 0


def test_a_pipeline_with_one_plan_in_flight_is_no_faster_than_one_stage() -> None:
    assert decoding(2, 2 * BATCH, 1).duration_s == pytest.approx(decoding(1, 2 * BATCH, 1).duration_s)


def test_a_lone_job_takes_an_iteration_a_token_however_many_stages_there_are() -> None:
    assert decoding(4, 1, 5).duration_s == pytest.approx(TOKENS * DECODE_S)


def test_a_static_batch_fills_the_pipeline() -> None:
    trace = [SimulatedJob(f"job-{number}/0", 0.0, 1, TOKENS) for number in range(2 * BATCH)]
    setup = server(PolicyName.STATIC, stages=2, max_batch=BATCH, plans_in_flight=3)
    assert simulate(setup, trace).duration_s == pytest.approx(TOKENS * DECODE_S + DECODE_S / 2)


def saturated(pipeline: Pipeline) -> Simulation:
    """Two stages, a batch for each, decodes only."""
    trace = [SimulatedJob(f"job-{number}/0", 0.0, 1, TOKENS) for number in range(2 * BATCH)]
    setup = server(PolicyName.FCFS, stages=2, max_batch=BATCH, plans_in_flight=3, pipeline=pipeline)
    return simulate(setup, trace)


def test_the_slower_stage_sets_the_pace_and_the_other_one_idles() -> None:
    simulation = saturated(Pipeline((0.5, 0.5), (0.7, 0.3)))
    plans = 2 * TOKENS
    assert simulation.duration_s == pytest.approx(plans * 0.7 * DECODE_S + 0.3 * DECODE_S)
    assert simulation.counters.busy_s == pytest.approx(plans * DECODE_S / 2)


def test_prefills_are_shared_out_by_shares_of_their_own() -> None:
    pipeline = Pipeline((0.9, 0.1), (0.5, 0.5))
    trace = [SimulatedJob(f"job-{number}/0", 0.0, 200, 1) for number in range(4)]
    setup = server(PolicyName.FCFS, stages=2, max_batch=1, plans_in_flight=3, pipeline=pipeline)
    prefill_s = 200 * PREFILL_S
    assert simulate(setup, trace).duration_s == pytest.approx(4 * 0.9 * prefill_s + 0.1 * prefill_s)


def test_a_lone_job_pays_the_way_of_its_hidden_states_and_of_its_tokens() -> None:
    pipeline, hop_s = Pipeline((0.5, 0.5), (0.5, 0.5), hand_over_s=0.003, row_s=0.1), 0.001
    trace = [SimulatedJob("job/0", 0.0, 1, TOKENS)]
    setup = server(PolicyName.FCFS, stages=2, plans_in_flight=3, pipeline=pipeline, hop_s=hop_s)
    times_s = simulate(setup, trace).outcomes[0].token_times_s
    gaps_s = [after - before for before, after in pairwise(times_s)]
    assert gaps_s == pytest.approx([DECODE_S + 0.003 + hop_s] * (TOKENS - 1))


def test_while_a_batch_is_on_its_way_the_stage_that_has_no_other_idles() -> None:
    way_s = DECODE_S / 4
    simulation = saturated(Pipeline((0.5, 0.5), (0.5, 0.5), hand_over_s=way_s - 3e-4, row_s=1e-4))
    assert simulation.duration_s == pytest.approx(TOKENS * (DECODE_S + way_s) + DECODE_S / 2)
    assert simulation.counters.busy_s == pytest.approx(TOKENS * DECODE_S)


def test_a_pipeline_of_other_stages_than_the_server_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="pipeline: has 2 stages, but the server 3"):
        server(stages=3, pipeline=Pipeline((0.5, 0.5), (0.5, 0.5)))


def swapping(link: LinkSpeed, kv_policy: str = "proactive") -> Simulation:
    """Far more jobs than the pool holds."""
    jobs = random_jobs(4, 120, rate_per_s=60.0)
    setup = server(
        PolicyName.SKIP_JOIN_MLFQ,
        kv_policy,
        cost=GROWING_COST,
        device_tokens=1024,
        link=link,
        kv_bytes_per_token=10_000,
    )
    return simulate(setup, jobs)


def test_copies_run_beside_compute() -> None:
    simulation = swapping(LinkSpeed(1e9, 1e-4))
    assert simulation.swap_s > 0.1
    assert simulation.swap_exposed_s < 0.05 * simulation.swap_s
    assert simulation.counters.stall_s == 0.0, "a job is planned when its upload is done"


def test_a_slow_link_leaves_the_device_idle_and_costs_time() -> None:
    slow, fast = swapping(LinkSpeed(2e7, 1e-4), "reactive"), swapping(LinkSpeed(1e12, 0.0), "reactive")
    assert slow.swap_exposed_s > 0.1
    assert fast.swap_exposed_s < 0.01 * slow.swap_exposed_s
    assert sum(map(ended_s, slow.outcomes)) > 1.05 * sum(map(ended_s, fast.outcomes))


def test_what_is_uploaded_was_offloaded() -> None:
    kv = swapping(LinkSpeed(1e9, 1e-4)).counters
    assert kv.offloaded_bytes >= kv.uploaded_bytes > 0
    assert kv.offloaded_bytes % (16 * 10_000) == 0
    assert kv.recomputed_tokens == 0
    assert swapping(LinkSpeed(1e9, 1e-4), "recompute").counters.recomputed_tokens > 0
