"""What holds for every workload, server and policy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.domain.errors import InvalidFieldError
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.scheduler_config import PolicyName
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import simulate
from services.simulator.time_spans import TimeSpan, total_s, union
from tests.simulator.simulated_servers import GROWING_COST, ended_s, random_jobs, server

PREEMPTIVE = [name for name in PolicyName if name is not PolicyName.STATIC]


@st.composite
def job_lists(draw: st.DrawFn, cancels: bool = True) -> list[SimulatedJob]:
    """A burst or a trickle of jobs, some with stop tokens, some cancelled."""
    gap_s = draw(st.sampled_from([0.0, 0.01, 0.2]))
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        prompt_tokens, output_tokens = draw(st.integers(1, 120)), draw(st.integers(1, 60))
        more_tokens = draw(st.sampled_from([0, 0, 5]))
        cancel_s = draw(st.none() | st.floats(0.0, 2.0)) if cancels else None
        at_s = number * gap_s
        jobs.append(
            SimulatedJob(
                f"job-{number}/0",
                at_s,
                prompt_tokens,
                output_tokens,
                None if cancel_s is None else at_s + cancel_s,
                output_tokens + more_tokens,
            )
        )
    return jobs


@st.composite
def servers(draw: st.DrawFn, policies: list[PolicyName]) -> ServerSetup:
    """All sizes of pools, batches, pipelines and delays."""
    return server(
        draw(st.sampled_from(policies)),
        draw(st.sampled_from(KV_POLICY_NAMES)),
        cost=GROWING_COST,
        device_tokens=draw(st.sampled_from([256, 400, 4096])),
        host_tokens=draw(st.sampled_from([0, 160, 4096])),
        stages=draw(st.integers(1, 3)),
        groups=draw(st.integers(1, 2)),
        hop_s=draw(st.sampled_from([0.0, 0.0003, 0.02])),
        max_batch=draw(st.sampled_from([1, 3, 16])),
        plans_in_flight=draw(st.integers(1, 4)),
        prefill_chunk_tokens=draw(st.sampled_from([None, 32])),
        starvation_limit_s=draw(st.sampled_from([None, 0.3, 10.0])),
    )


@settings(max_examples=60, deadline=None)
@given(servers(list(PolicyName)), job_lists())
def test_no_token_is_lost_or_made_twice_and_all_blocks_come_back(setup: ServerSetup, jobs: list[SimulatedJob]) -> None:
    """The simulator itself asserts that free and used blocks make up the pools, and that all are free at the end."""
    simulation = simulate(setup, jobs)
    assert [outcome.job_id for outcome in simulation.outcomes] == [job.job_id for job in jobs]
    for job, outcome in zip(jobs, simulation.outcomes, strict=True):
        times_s = list(outcome.token_times_s)
        assert outcome.error is None
        assert times_s == sorted(set(times_s)), "tokens come one after another"
        assert all(time_s >= job.arrival_s + 2 * setup.hop_s for time_s in times_s)
        if outcome.finish_reason == "cancelled":
            assert job.cancel_s is not None
            assert len(times_s) <= job.output_tokens
        else:
            assert outcome.finish_reason == ("stop" if job.output_tokens < job.most_output_tokens else "length")
            assert len(times_s) == job.output_tokens


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PREEMPTIVE), st.integers(0, 10_000), st.sampled_from([1, 4, 16]), st.integers(1, 2))
def test_the_group_computes_exactly_while_somebody_is_there(
    policy: PolicyName, seed: int, max_batch: int, plans: int
) -> None:
    """Work conservation, if the pool holds all jobs and messages take no time."""
    jobs = random_jobs(seed, 30, rate_per_s=8.0, longest=40)
    simulation = simulate(server(policy, cost=GROWING_COST, max_batch=max_batch, plans_in_flight=plans), jobs)
    there = union(TimeSpan(outcome.arrival_s, ended_s(outcome)) for outcome in simulation.outcomes)
    assert simulation.counters.busy_s == pytest.approx(total_s(there))


@pytest.mark.parametrize("kv_policy", KV_POLICY_NAMES)
def test_the_same_input_gives_the_same_figures_bit_for_bit(kv_policy: str) -> None:
    jobs = random_jobs(1, 80, rate_per_s=30.0)
    setup = server(PolicyName.SKIP_JOIN_MLFQ, kv_policy, cost=GROWING_COST, device_tokens=1024, hop_s=0.0003, groups=2)
    assert simulate(setup, jobs) == simulate(setup, list(jobs))


@pytest.mark.parametrize(("kv_policy", "host_tokens"), [("recompute", 0), ("proactive", 0), ("reactive", 128)])
def test_promotion_and_chunks_do_not_keep_jobs_from_their_first_token_where_kv_is_dropped(
    kv_policy: str, host_tokens: int
) -> None:
    jobs = [SimulatedJob(f"job-{number}/0", 0.0, 100 + number, 10) for number in range(16)]
    setup = server(
        PolicyName.SKIP_JOIN_MLFQ,
        kv_policy,
        cost=GROWING_COST,
        device_tokens=256,
        host_tokens=host_tokens,
        prefill_chunk_tokens=16,
        starvation_limit_s=0.3,
    )
    assert all(len(outcome.token_times_s) == 10 for outcome in simulate(setup, jobs).outcomes)


def test_the_order_in_which_jobs_are_listed_changes_nothing_but_the_order_of_outcomes() -> None:
    jobs = random_jobs(2, 40, rate_per_s=30.0)
    setup = server(cost=GROWING_COST, device_tokens=1024, hop_s=0.0003)
    assert simulate(setup, jobs[::-1]).outcomes[::-1] == simulate(setup, jobs).outcomes


def test_a_job_that_can_never_fit_is_refused_and_the_others_are_served() -> None:
    jobs = [SimulatedJob("big", 0.0, 3000, 200), SimulatedJob("small", 0.0, 30, 4)]
    big, small = simulate(server(device_tokens=2048), jobs).outcomes
    assert big.error is not None
    assert "KV pool" in big.error
    assert (list(big.token_times_s), big.finish_reason) == ([], "")
    assert (len(small.token_times_s), small.error) == (4, None)


def test_a_cancelled_job_gets_no_token_after_its_cancellation_was_heard() -> None:
    job = SimulatedJob("a", 0.0, 20, 500, cancel_s=1.0)
    outcome = simulate(server(hop_s=0.001), [job]).outcomes[0]
    assert outcome.finish_reason == "cancelled"
    assert 1.0 - 0.03 < ended_s(outcome) <= 1.0 + 2 * 0.001


def test_progress_is_told_job_by_job() -> None:
    told: list[int] = []
    simulate(server(), random_jobs(0, 5, 10.0), told.append)
    assert told == [1, 2, 3, 4, 5]


def test_every_message_takes_a_hop() -> None:
    """From the client to the scheduler it is one hop, from there to the first plan four (Arrive, Assign, Applied,
    Resident); the plan, its result and the token take three.
    """
    hop_s = 0.01
    outcome = simulate(server(hop_s=hop_s), [SimulatedJob("a", 1.0, 100, 1)]).outcomes[0]
    assert outcome.queue_s == pytest.approx(5 * hop_s)
    assert ended_s(outcome) == pytest.approx(1.0 + 0.1 + 8 * hop_s)
    assert outcome.executing_s == pytest.approx(0.1)


def test_a_worker_slower_than_its_profile_takes_longer_and_the_scheduler_does_not_know() -> None:
    """The job with 100 prompt tokens takes 0.1 s according to the profile, whose quanta determine demotions."""
    jobs = [SimulatedJob("a", 0.0, 100, 1), SimulatedJob("b", 0.0, 100, 1)]
    setup = server(PolicyName.SKIP_JOIN_MLFQ, max_batch=1, slowdown=1.5)
    assert [ended_s(outcome) for outcome in simulate(setup, jobs).outcomes] == pytest.approx([0.15, 0.3])
    assert simulate(setup, jobs).counters.busy_s == pytest.approx(0.3)


def test_the_overhead_of_an_iteration_is_paid_by_every_stage_whatever_is_computed() -> None:
    """A prefill of 0.1 s and 4 decodes of 0.01 s, each iteration on two stages."""
    jobs = [SimulatedJob("a", 0.0, 100, 5)]
    plain, slow = (
        simulate(server(PolicyName.SKIP_JOIN_MLFQ, stages=2, overhead_s=overhead_s), jobs) for overhead_s in (0.0, 0.5)
    )
    iterations = plain.counters.iterations
    assert slow.counters.iterations == iterations == 5
    assert ended_s(slow.outcomes[0]) == pytest.approx(ended_s(plain.outcomes[0]) + 2 * 0.5 * iterations)
    assert slow.counters.busy_s == pytest.approx(plain.counters.busy_s + 0.5 * iterations)  # the mean of both stages


def test_groups_share_the_jobs_out() -> None:
    """Two jobs at a time on two groups of batch 1 do not meet; the third has to wait for the first."""
    jobs = [SimulatedJob(name, 0.0, 100, 1) for name in "abc"]
    ends = [ended_s(outcome) for outcome in simulate(server(groups=2, max_batch=1), jobs).outcomes]
    assert ends == pytest.approx([0.1, 0.1, 0.2])


def test_peaks_count_the_blocks_of_all_groups_and_both_pools() -> None:
    jobs = [SimulatedJob(name, 0.0, 150, 20) for name in "abcd"]
    small = {"device_tokens": 192, "max_batch": 1, "cost": GROWING_COST}
    alone = simulate(server(PolicyName.MLFQ, "reactive", groups=4, **small), jobs)  # type: ignore[arg-type]
    assert alone.peak_kv_tokens == alone.peak_device_kv_tokens == 4 * 176
    together = simulate(server(PolicyName.MLFQ, "reactive", **small), jobs)  # type: ignore[arg-type]
    assert together.peak_device_kv_tokens <= 192 < together.peak_kv_tokens
    assert together.counters.offloaded_bytes == together.counters.uploaded_bytes > 0


def test_two_jobs_of_one_id_are_refused() -> None:
    job = SimulatedJob("a", 0.0, 1, 1)
    with pytest.raises(InvalidFieldError, match="must be unique"):
        simulate(server(), [job, replace(job, arrival_s=1.0)])


@pytest.mark.parametrize(
    "wrong", [{"arrival_s": -1.0}, {"prompt_tokens": 0}, {"output_tokens": 0}, {"cancel_s": 0.5}, {"max_tokens": 1}]
)
def test_a_job_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidFieldError):
        replace(SimulatedJob("a", 1.0, 2, 2), **wrong)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(setup=servers(list(PolicyName)), jobs=job_lists())
def test_both_machines_keep_their_invariants_from_turn_to_turn(
    setup: ServerSetup, jobs: list[SimulatedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0

    def checked(handle: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def take(machine: Scheduler | KvManager, events: Sequence[Any], now_s: float) -> list[Any]:
            nonlocal turns
            turns += 1
            commands = handle(machine, events, now_s)
            machine.check()
            return commands

        return take

    with monkeypatch.context() as patched:
        for kind in (Scheduler, KvManager):
            patched.setattr(kind, "handle", checked(kind.handle))
        simulate(setup, jobs)
    assert turns > len(jobs)


def test_plans_that_would_have_to_be_recalled_are_refused() -> None:
    with pytest.raises(InvalidFieldError, match="plans_in_flight: must be given"):
        server(PolicyName.FCFS, plans_in_flight=None)
