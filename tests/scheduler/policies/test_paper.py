"""Policies compared with PAPER 2: the worked example, and each rule of the scheduling step."""

import pytest

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import Cancel, Submit
from services.scheduler.policies.mlfq import quanta
from services.scheduler.scheduler_config import Charge, PolicyName, SchedulerConfig
from tests.builders.cost_profiles import flat_cost, proportional_cost
from tests.builders.worked_example import EXAMPLE_COST, EXAMPLE_JOBS, EXAMPLE_MEANS_S
from tests.scheduler.machine.checked_scheduler import COST, CheckedScheduler, ended, entries, joined, plans
from tests.scheduler.machine.served_trace import Arrival, ServedTrace, serve_trace

EXAMPLE = tuple(Arrival(*job) for job in EXAMPLE_JOBS)


def one_at_a_time(policy: PolicyName, **knobs: object) -> SchedulerConfig:
    """Batch 1 and one plan under way, as in the papers' worked example."""
    knobs = {"starvation_limit_s": None, "plans_in_flight": 1, "max_batch": 1, "max_batch_tokens": 4000} | knobs
    return SchedulerConfig(policy=policy, **knobs)  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "mean_s"), EXAMPLE_MEANS_S)
def test_the_worked_example_has_the_papers_mean_latencies(policy: PolicyName, mean_s: float) -> None:
    assert serve_trace(one_at_a_time(policy), EXAMPLE, EXAMPLE_COST).mean_s == pytest.approx(mean_s, abs=1e-3)


def test_quanta_double_from_the_smallest_iteration_until_the_last_exceeds_the_longest_prefill() -> None:
    assert quanta(EXAMPLE_COST, 2700, 2.0) == pytest.approx((0.2, 0.4, 0.8, 1.6, 3.2))
    assert quanta(EXAMPLE_COST, 3200, 2.0) == pytest.approx((0.2, 0.4, 0.8, 1.6, 3.2, 6.4))


@pytest.mark.parametrize(("prompt_tokens", "level"), [(1, 0), (200, 0), (201, 1), (400, 1), (401, 2), (2700, 4)])
def test_a_job_skips_the_levels_whose_quantum_its_measured_prefill_exceeds(prompt_tokens: int, level: int) -> None:
    machine = CheckedScheduler(one_at_a_time(PolicyName.SKIP_JOIN_MLFQ))
    machine.start(EXAMPLE_COST)
    machine.turn(Submit(JobId("a"), prompt_tokens, 8))
    assert machine.scheduler.jobs[JobId("a")].rank.level == level


def test_skip_join_follows_the_profile_that_the_worker_measured() -> None:
    machine = CheckedScheduler(one_at_a_time(PolicyName.SKIP_JOIN_MLFQ))
    twice_as_fast = proportional_cost(0.0005, 0.2, least_tokens=200)
    machine.start(twice_as_fast)
    machine.turn(Submit(JobId("a"), 400, 8))
    assert machine.scheduler.jobs[JobId("a")].rank.level == 1  # 0.2 s, quanta 0.1, 0.2, ...


def test_a_job_that_no_quantum_holds_joins_the_lowest_level() -> None:
    machine = CheckedScheduler(one_at_a_time(PolicyName.SKIP_JOIN_MLFQ))
    machine.start(EXAMPLE_COST, max_model_len=300)
    assert machine.scheduler.policy.quanta_s == pytest.approx((0.2, 0.4))
    machine.turn(joined(CostProfile((PrefillCost(1, 1.0),), (DecodeCost(1, 1, 0.01),)), epoch=8, max_model_len=3000))
    levels = len(machine.scheduler.policy.quanta_s)
    machine.turn(Submit(JobId("a"), 299, 1))
    assert machine.scheduler.jobs[JobId("a")].rank.level == levels - 1


def test_a_job_is_demoted_when_its_service_reaches_the_quantum_and_its_counter_starts_anew() -> None:
    quarters = proportional_cost(0.0025, 0.25, least_tokens=100)
    serving = ServedTrace(one_at_a_time(PolicyName.SKIP_JOIN_MLFQ), [Arrival("a", 100, 20)], quarters)
    levels = []
    while serving.iterate():
        job = serving.machine.scheduler.jobs.get(JobId("a"))
        levels.append(-1 if job is None else job.rank.level)
    # Quanta 0.25, 0.5, 1, 2: the prefill uses up the first quantum, two decodes of 0.25 s the second, and so on.
    assert levels[:16] == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4]
    assert serving.machine.scheduler.counters.demotions == 4


def test_demotion_goes_eta_levels_down() -> None:
    config = one_at_a_time(PolicyName.SKIP_JOIN_MLFQ, demotion_levels=2)
    serving = ServedTrace(config, [Arrival("a", 100, 20)], EXAMPLE_COST)
    serving.iterate()
    assert serving.machine.scheduler.jobs[JobId("a")].rank.level == 2


def test_a_job_of_the_lowest_level_keeps_its_place_for_good() -> None:
    two_levels = flat_cost(0.25)
    run = serve_trace(one_at_a_time(PolicyName.MLFQ), [Arrival("a", 10, 8), Arrival("b", 10, 8)], two_levels)
    assert "".join(jobs[0] for jobs in run.order) == "ab" + 7 * "a" + 7 * "b"


def test_a_demoted_job_joins_the_tail_of_its_level() -> None:
    jobs = [Arrival("a", 200, 4), Arrival("b", 200, 4), Arrival("c", 200, 4)]
    run = serve_trace(one_at_a_time(PolicyName.MLFQ), jobs, EXAMPLE_COST)
    assert "".join(jobs[0] for jobs in run.order) == "abc" + "aabbcc" + "abc"


def test_ties_are_broken_by_arrival() -> None:
    for policy in (PolicyName.FCFS, PolicyName.FIXED_PRIORITY, PolicyName.SRPT, PolicyName.SKIP_JOIN_MLFQ):
        run = serve_trace(one_at_a_time(policy), [Arrival(name, 100, 1) for name in "dacb"], EXAMPLE_COST)
        assert [jobs[0] for jobs in run.order] == ["d", "a", "c", "b"], policy


def test_a_started_prefill_is_not_preempted_by_a_shorter_job() -> None:
    for policy in (PolicyName.MLFQ, PolicyName.SKIP_JOIN_MLFQ, PolicyName.SRPT):
        run = serve_trace(
            one_at_a_time(policy), [Arrival("long", 2000, 5), Arrival("short", 100, 1, 0.5)], EXAMPLE_COST
        )
        assert run.order[0] == ["long"]
        assert run.first_token_s["long"] == pytest.approx(2.0)
        assert run.order[1] == ["short"], policy


def test_a_short_arrival_preempts_a_long_job_at_the_next_token() -> None:
    jobs = [Arrival("long", 2000, 50), Arrival("short", 100, 1, 3.1)]
    run = serve_trace(one_at_a_time(PolicyName.SKIP_JOIN_MLFQ), jobs, EXAMPLE_COST)
    assert run.finished_s["short"] == pytest.approx(3.4)  # the iteration under way ends at 3.2
    assert serve_trace(one_at_a_time(PolicyName.FCFS), jobs, EXAMPLE_COST).finished_s["short"] > 10


def test_killing_cuts_the_prefill_at_every_quantum_and_starts_it_again_from_nothing() -> None:
    serving = ServedTrace(one_at_a_time(PolicyName.MLFQ_KILL), [Arrival("a", 700, 2)], EXAMPLE_COST)
    ends = []
    while serving.iterate():
        ends.append(round(serving.machine.now_s, 3))
    # Cut after 0.2 and after 0.4 more, whole within 0.8.
    assert ends == [0.2, 0.6, 1.3, 1.5]
    assert serving.run.finished_s == {"a": pytest.approx(1.5)}


def test_killing_does_not_cut_in_the_lowest_level_because_the_job_would_never_end() -> None:
    config = one_at_a_time(PolicyName.MLFQ_KILL)
    run = serve_trace(config, [Arrival("a", 3999, 1)], EXAMPLE_COST, most_iterations=20)
    assert run.finished_s["a"] > 3.999


def test_the_job_whose_prefill_was_cut_lets_others_run_before_it_tries_again() -> None:
    run = serve_trace(
        one_at_a_time(PolicyName.MLFQ_KILL), [Arrival("long", 700, 1), Arrival("short", 100, 1)], EXAMPLE_COST
    )
    assert [jobs[0] for jobs in run.order] == ["long", "short", "long", "long"]


def test_a_job_whose_prefill_may_be_cut_is_not_planned_further_before_its_result() -> None:
    machine = CheckedScheduler(one_at_a_time(PolicyName.MLFQ_KILL, plans_in_flight=2))
    serving = ServedTrace(machine.config, [Arrival("a", 700, 3)], EXAMPLE_COST)
    serving.iterate()
    first_two = serving.machine.commands
    assert [entries(plan) for plan in plans(first_two)][:2] == [[("a", 0, 700)], [("a", 0, 700)]]


def test_a_static_batch_lets_nobody_in_until_its_last_job_ended() -> None:
    config = SchedulerConfig(policy=PolicyName.STATIC, max_batch=2, plans_in_flight=1)
    jobs = [Arrival("a", 10, 6), Arrival("b", 10, 2), Arrival("c", 10, 1), Arrival("d", 10, 1)]
    run = serve_trace(config, jobs, COST)
    assert run.order == [["a", "b"]] * 2 + [["a"]] * 4 + [["c", "d"]]


def test_a_static_batch_starts_with_who_is_there() -> None:
    config = SchedulerConfig(policy=PolicyName.STATIC, max_batch=2, plans_in_flight=1)
    run = serve_trace(config, [Arrival("a", 10, 2), Arrival("b", 10, 1, 0.001), Arrival("c", 10, 1, 0.002)], COST)
    assert run.order == [["a"], ["a"], ["b", "c"]]


def test_a_cancelled_job_does_not_come_into_a_static_batch() -> None:
    serving = ServedTrace(
        SchedulerConfig(policy=PolicyName.STATIC, max_batch=1, plans_in_flight=1),
        [Arrival("a", 10, 3), Arrival("b", 10, 3), Arrival("c", 10, 1)],
        COST,
    )
    serving.iterate()
    commands = serving.machine.turn(Cancel(JobId("b"), EndReason.CANCELLED))
    assert ended(commands) == [("b", EndReason.CANCELLED)]
    while serving.iterate():
        pass
    assert serving.run.order == [["a"]] * 3 + [["c"]]


def test_fixed_priority_runs_the_shortest_prompt_whatever_it_still_needs() -> None:
    jobs = [Arrival("a", 300, 1), Arrival("b", 100, 3), Arrival("c", 50, 1, 0.15)]
    run = serve_trace(one_at_a_time(PolicyName.FIXED_PRIORITY), jobs, EXAMPLE_COST)
    assert [jobs[0] for jobs in run.order] == ["b", "c", "b", "b", "a"]


def test_srpt_goes_on_with_the_job_that_needs_least_now() -> None:
    jobs = [Arrival("a", 200, 3), Arrival("b", 200, 2, 0.5)]
    run = serve_trace(one_at_a_time(PolicyName.SRPT), jobs, EXAMPLE_COST)
    assert [jobs[0] for jobs in run.order] == ["a", "a", "a", "b", "b"]


def test_wall_charges_every_job_the_whole_iteration_and_marginal_its_own_part() -> None:
    levels = {}
    for charge in Charge:
        config = one_at_a_time(PolicyName.SKIP_JOIN_MLFQ, max_batch=2, charge=charge)
        serving = ServedTrace(config, [Arrival("a", 100, 20), Arrival("b", 1000, 20)], COST)
        serving.iterate()
        levels[charge] = [serving.machine.scheduler.jobs[JobId(job)].service_s for job in "ab"]
        assert serving.machine.now_s == pytest.approx(1.1)
    assert levels[Charge.MARGINAL] == pytest.approx([0.1, 1.0], abs=0.002)
    assert levels[Charge.WALL] == [0.0, 0.0]  # both used up their quanta and were demoted
