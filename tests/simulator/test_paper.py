"""PAPER's worked example, and the theory of queues, through the whole simulator: both machines, pools, copies."""

from math import sqrt
from random import Random
from statistics import fmean, stdev

import pytest

from services.scheduler.scheduler_config import PolicyName
from services.simulator.server_setup import SimulatedJob
from services.simulator.simulation import simulate
from tests.builders.worked_example import EXAMPLE_COST, EXAMPLE_JOBS, EXAMPLE_MEANS_S
from tests.simulator.simulated_servers import (
    DECODE_S,
    GROWING_COST,
    PREFILL_S,
    ended_s,
    mean_jct_s,
    one_at_a_time,
    random_jobs,
    server,
)

EXAMPLE = tuple(SimulatedJob(name, 0.0, prompt, output) for name, prompt, output in EXAMPLE_JOBS)


@pytest.mark.parametrize("kv_policy", ["proactive", "reactive", "recompute", "defer"])
@pytest.mark.parametrize(("policy", "mean_s"), EXAMPLE_MEANS_S)
def test_the_worked_example_has_the_papers_mean_latencies(policy: PolicyName, mean_s: float, kv_policy: str) -> None:
    simulation = simulate(one_at_a_time(policy, kv_policy, cost=EXAMPLE_COST), EXAMPLE)
    assert mean_jct_s(simulation) == pytest.approx(mean_s, abs=1e-3)


def test_killing_the_first_iteration_loses_what_it_computed() -> None:
    """Cut after 0.2 s and after 0.4 s more, whole within 0.8 s: 0.7 s of prefill end at 1.3 s."""
    setup = one_at_a_time(PolicyName.MLFQ_KILL, cost=EXAMPLE_COST)
    simulation = simulate(setup, [SimulatedJob("a", 0.0, 700, 2)])
    assert list(simulation.outcomes[0].token_times_s) == pytest.approx([1.3, 1.5])


def test_a_cut_prefill_leaves_no_kv_to_be_moved_when_its_blocks_are_taken() -> None:
    """Each prompt fits the pool only on its own, and each is cut twice before it may run to its end."""
    jobs = [SimulatedJob(name, at_s, 700, 40) for name, at_s in (("a", 0.0), ("b", 0.1), ("c", 0.3))]
    setup = one_at_a_time(PolicyName.MLFQ_KILL, "reactive", cost=EXAMPLE_COST, device_tokens=800)
    simulation = simulate(setup, jobs)
    assert simulation.counters.demotions > len(jobs)
    assert [len(outcome.token_times_s) for outcome in simulation.outcomes] == [40, 40, 40]


def prefill_bound_jobs(count: int, rate_per_s: float) -> list[SimulatedJob]:
    """Poisson arrivals with widely spread service times and few iterations each."""
    random = Random(11)
    at_s = 0.0
    jobs = []
    for number in range(count):
        at_s += random.expovariate(rate_per_s)
        jobs.append(SimulatedJob(f"job-{number}/0", at_s, 20 + int(random.expovariate(0.012)), random.randint(1, 3)))
    return jobs


def test_fcfs_at_batch_1_waits_as_long_as_pollaczek_and_khinchine_say() -> None:
    """M/G/1: E[wait] = rate E[service^2] / (2 (1 - load)). The waits of one run are dependent, so the tolerance comes
    from the means of batches of jobs that are long against a busy period: 4 standard errors.
    """
    batches, batch, rate_per_s = 30, 250, 5.0
    jobs = prefill_bound_jobs(batches * batch, rate_per_s)
    services_s = [job.prompt_tokens * PREFILL_S + (job.output_tokens - 1) * DECODE_S for job in jobs]
    simulation = simulate(one_at_a_time(PolicyName.FCFS), jobs)
    waits_s = [outcome.queue_s for outcome in simulation.outcomes]
    load = rate_per_s * fmean(services_s)
    expected_s = rate_per_s * fmean(s * s for s in services_s) / (2.0 * (1.0 - load))
    means_s = [fmean(waits_s[start : start + batch]) for start in range(0, len(jobs), batch)]
    error_s = stdev(means_s) / sqrt(batches)
    assert 0.5 < load < 0.8
    assert 4.0 * error_s < 0.3 * expected_s, "too few jobs to tell"
    assert fmean(waits_s) == pytest.approx(expected_s, abs=4.0 * error_s)
    assert simulation.counters.busy_s == pytest.approx(sum(services_s), rel=1e-3)


@pytest.mark.parametrize("policy", [name for name in PolicyName if name is not PolicyName.SRPT])
def test_nobody_beats_srpt_at_batch_1_by_more_than_one_iteration(policy: PolicyName) -> None:
    """SRPT is optimal where jobs can be preempted at any time; here it has to wait for the end of an iteration, at most
    the longest prefill.
    """
    longest_prefill_s = 100 * PREFILL_S
    for seed in range(2):
        jobs = random_jobs(seed, 100, rate_per_s=5.0)
        best = mean_jct_s(simulate(one_at_a_time(PolicyName.SRPT), jobs))
        assert best <= mean_jct_s(simulate(one_at_a_time(policy), jobs)) + longest_prefill_s


@pytest.mark.parametrize("policy", [name for name in PolicyName if name is not PolicyName.SRPT])
def test_nobody_beats_srpt_at_batch_16_by_more_than_a_twentieth(policy: PolicyName) -> None:
    """With batches it is no longer optimal, because it ignores what a job adds to its batch."""
    for seed in range(2):
        jobs = random_jobs(seed, 200, rate_per_s=60.0)
        best = mean_jct_s(simulate(server(PolicyName.SRPT, cost=GROWING_COST), jobs))
        assert best <= 1.05 * mean_jct_s(simulate(server(policy, cost=GROWING_COST), jobs))


@pytest.mark.parametrize("policy", [PolicyName.MLFQ, PolicyName.SKIP_JOIN_MLFQ])
def test_defer_decays_to_fcfs_when_kv_binds(policy: PolicyName) -> None:
    """The pool holds prompt and output of three jobs: admitted jobs stay, and the next ones enter in order of
    arrival.
    """
    jobs = [SimulatedJob(job.job_id, job.arrival_s, 40, 41 + job.output_tokens % 30) for job in random_jobs(3, 60, 4.0)]
    given: dict[str, object] = {"device_tokens": 336, "max_batch": 3, "starvation_limit_s": None}
    fcfs = simulate(server(PolicyName.FCFS, "defer", **given), jobs)  # type: ignore[arg-type]
    deferring = simulate(server(policy, "defer", **given), jobs)  # type: ignore[arg-type]
    assert fcfs.outcomes[-1].queue_s > 1.0, "KV does not bind"
    assert [ended_s(outcome) for outcome in deferring.outcomes] == [ended_s(outcome) for outcome in fcfs.outcomes]
    assert deferring.counters.demotions > 0
    moving = simulate(server(policy, "proactive", **given), jobs)  # type: ignore[arg-type]
    assert [ended_s(outcome) for outcome in moving.outcomes] != [ended_s(outcome) for outcome in fcfs.outcomes]
