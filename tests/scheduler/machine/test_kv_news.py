"""How plans go on the KV manager need not hear at once while nothing that it decides depends on it: all that would run
are running, and have room.
"""

import pytest

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import GROWTH_TOKENS
from services.scheduler.machine.kv_news import may_wait
from services.scheduler.machine.scheduler_events import Cancel, Submit
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, fcfs, plans, started
from tests.scheduler.machine.events_from_kv import A, B, C, grown, reclaim, resident

OUTPUT = 100
IN_FLIGHT = 2


def decoding(*names: JobId, capacity: int = 1000, config: SchedulerConfig | None = None) -> CheckedScheduler:
    """These jobs run, their prefills of ten tokens behind them, with room for so many tokens."""
    machine = started(config or fcfs(max_batch=2, plans_in_flight=IN_FLIGHT), *names, output=OUTPUT)
    machine.turn(*(resident(name, capacity) for name in names))
    step(machine)
    return machine


def step(machine: CheckedScheduler) -> None:
    """The oldest plan ends, and another is made."""
    oldest = machine.scheduler.iterations.unfinished[0].plan_number
    (plan,) = (one for one in plans(machine.commands) if one.plan_number == oldest)
    machine.turn(machine.result(plan))


def test_while_all_are_running_and_have_room() -> None:
    assert may_wait(decoding(A, B).scheduler)


def test_not_before_the_first_plan() -> None:
    assert not may_wait(started(fcfs(), A, output=OUTPUT).scheduler)


def test_not_of_a_prefill() -> None:
    machine = decoding(A)
    machine.turn(Submit(B, 10, OUTPUT))
    machine.turn(resident(B))
    step(machine)
    assert not may_wait(machine.scheduler)
    step(machine)
    assert may_wait(machine.scheduler)


def test_not_once_a_job_has_no_more_room_than_it_grows_at() -> None:
    machine = decoding(A, B, capacity=60)
    job = machine.scheduler.jobs[A]
    while job.capacity_tokens - job.planned_tokens > GROWTH_TOKENS + IN_FLIGHT:
        assert may_wait(machine.scheduler)
        step(machine)
    assert not may_wait(machine.scheduler)
    machine.turn(grown(A, 100), grown(B, 100))
    assert may_wait(machine.scheduler)


def test_a_job_that_has_all_the_room_that_it_may_need_waits_for_none() -> None:
    machine = decoding(A, capacity=10 + OUTPUT)
    job = machine.scheduler.jobs[A]
    while job.capacity_tokens - job.planned_tokens > 5:
        assert may_wait(machine.scheduler)
        step(machine)


def test_not_while_a_job_waits_that_would_have_a_place_in_the_batch() -> None:
    machine = decoding(A)
    machine.turn(Submit(B, 10, OUTPUT))
    step(machine)
    assert not may_wait(machine.scheduler)


def test_one_that_waits_behind_a_full_batch_changes_nothing() -> None:
    machine = decoding(A, B)
    machine.turn(Submit(C, 10, OUTPUT))
    step(machine)
    assert may_wait(machine.scheduler)


def test_one_that_waits_ahead_of_a_full_batch_does() -> None:
    machine = decoding(B, C, config=SchedulerConfig(policy=PolicyName.SRPT, max_batch=2, plans_in_flight=IN_FLIGHT))
    machine.turn(Submit(A, 10, 1))
    step(machine)
    assert not may_wait(machine.scheduler)


def test_not_while_a_job_is_to_give_up_its_blocks_or_has_ended() -> None:
    machine = decoding(A, B)
    machine.turn(reclaim(B))
    assert not may_wait(machine.scheduler)
    machine = decoding(A, B)
    machine.turn(Cancel(B, EndReason.CANCELLED))
    assert not may_wait(machine.scheduler)


@pytest.mark.parametrize("policy", [PolicyName.SKIP_JOIN_MLFQ, PolicyName.MLFQ])
def test_not_under_levels_whose_promotions_the_kv_manager_foresees(policy: PolicyName) -> None:
    config = SchedulerConfig(policy=policy, max_batch=2, plans_in_flight=IN_FLIGHT)
    assert not may_wait(decoding(A, B, config=config).scheduler)
