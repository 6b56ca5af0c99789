"""Promotion of jobs that have waited for the starvation limit: when, which, how many, and what it guarantees."""

import pytest

from services.domain.ids import JobId
from services.domain.protocol import Order, OrderChange, Rank
from services.scheduler.machine.scheduler_events import Submit, Tick, WakeAt
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.builders.cost_profiles import flat_cost
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, machine_with, plans, shape, told
from tests.scheduler.machine.events_from_kv import resident
from tests.scheduler.machine.served_trace import Arrival, ServedTrace

QUARTERS = flat_cost(0.25)
"""Every iteration takes 0.25 s; quanta 0.25 and 0.5."""


def starving(limit_s: float, per_step: int = 1, jobs: str = "abcd") -> ServedTrace:
    """One long job runs in the lower level, the others wait there behind it."""
    config = SchedulerConfig(
        policy=PolicyName.MLFQ,
        max_batch=1,
        plans_in_flight=1,
        starvation_limit_s=limit_s,
        promotions_per_step=per_step,
    )
    return ServedTrace(config, [Arrival(name, 10, 100) for name in jobs], QUARTERS)


def test_a_job_that_waited_for_the_limit_is_promoted_and_runs_at_least_one_whole_iteration() -> None:
    serving = starving(3.0, jobs="ab")
    for _ in range(20):
        serving.iterate()
    # Both had a prefill of 0.25 s and were demoted; "b" waits from 0.5 s on behind "a".
    order = "".join(jobs[0] for jobs in serving.run.order)
    assert order[:16] == "ab" + 12 * "a" + "ba"
    assert serving.machine.scheduler.counters.promotions == 1


@pytest.mark.parametrize("per_step", [1, 2])
def test_promotions_per_step_are_bounded_and_the_longest_wait_comes_first(per_step: int) -> None:
    serving = starving(3.0, per_step)
    promoted: list[list[str]] = []
    for _ in range(40):
        before = len(serving.machine.commands)
        serving.iterate()
        changes = [
            change
            for message in told(serving.machine.commands[before:])
            if isinstance(message, Order)
            for change in message.changes
        ]
        jumped: list[str] = [
            change.job_id for change in changes if change.rank.level == 0 and serving.machine.now_s > 1.0
        ]
        if jumped:
            promoted.append(jumped)
    assert max(len(jobs) for jobs in promoted) <= per_step
    assert [job for jobs in promoted for job in jobs][:3] == ["b", "c", "d"]


def test_without_a_limit_nobody_is_promoted() -> None:
    config = SchedulerConfig(policy=PolicyName.MLFQ, max_batch=1, plans_in_flight=1, starvation_limit_s=None)
    serving = ServedTrace(config, [Arrival("a", 10, 100), Arrival("b", 10, 100)], QUARTERS)
    for _ in range(90):
        serving.iterate()
    assert serving.machine.scheduler.counters.promotions == 0


def test_running_is_not_waiting() -> None:
    serving = starving(1.0, jobs="a")
    while serving.iterate():
        pass
    assert serving.machine.scheduler.counters.promotions == 0


def test_a_promoted_jobs_timer_and_counter_start_anew() -> None:
    machine = machine_with(
        [("a", 10, 50), ("b", 10, 50)],
        QUARTERS,
        policy=PolicyName.MLFQ,
        max_batch=1,
        plans_in_flight=1,
        starvation_limit_s=5.0,
    )
    (plan,) = plans(machine.commands)
    for now_s in (0.25, 0.5, 6.0):
        (plan,) = plans(machine.turn(machine.result(plan, duration_s=0.25), at_s=now_s))
    job = machine.scheduler.jobs[JobId("b")]
    assert (job.rank.level, job.service_s, job.waiting_since_s) == (0, 0.0, 6.0)
    assert list(shape(plan)) == ["b"]


def test_a_job_that_waits_while_no_iteration_ends_is_promoted_by_the_clock() -> None:
    config = SchedulerConfig(policy=PolicyName.SKIP_JOIN_MLFQ, starvation_limit_s=2.0)
    machine = CheckedScheduler(config)
    machine.start()
    commands = machine.turn(Submit(JobId("a"), 100, 5))
    assert commands[-1] == WakeAt(2.0)
    assert machine.scheduler.jobs[JobId("a")].rank.level > 0
    (message,) = told(machine.turn(Tick(), at_s=2.0))
    assert message == Order((OrderChange(JobId("a"), Rank(0, 2.0, 0)),))


def test_while_no_plan_is_under_way_one_step_promotes_and_no_more() -> None:
    machine = CheckedScheduler(SchedulerConfig(policy=PolicyName.SKIP_JOIN_MLFQ, starvation_limit_s=2.0))
    machine.start()
    machine.turn(*(Submit(JobId(name), 100, 5) for name in "abc"))
    for at_s in (2.0, 2.0, 2.5, 3.0):
        machine.turn(Tick(), at_s=at_s)
    assert machine.scheduler.counters.promotions == 1
    (plan,) = plans(machine.turn(resident(JobId("a"), 100)))
    machine.turn(machine.result(plan), at_s=3.5)
    assert machine.scheduler.counters.promotions == 2


def test_the_prefill_of_a_promoted_job_is_not_cut() -> None:
    machine = machine_with(
        [("short", 10, 50), ("long", 700, 5)],
        policy=PolicyName.MLFQ_KILL,
        max_batch=1,
        plans_in_flight=1,
        starvation_limit_s=3.0,
    )
    (plan,) = plans(machine.commands)
    cut: list[str] = []
    tried = []
    for now_s in (0.2, 4.0, 8.0):
        (plan,) = plans(machine.turn(machine.result(plan, cut=cut), at_s=now_s))
        cut = ["long"] if plan.cut_after_s else []
        tried.append((*shape(plan), bool(plan.cut_after_s)))
    assert machine.scheduler.counters.promotions == 2, "of the short one, then of the long one"
    assert tried == [("long", True), ("short", False), ("long", False)]
