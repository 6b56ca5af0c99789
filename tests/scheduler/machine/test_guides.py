"""A job with a guide: the worker may pass its first entry over, and the job is planned again from there."""

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import JobId
from services.domain.protocol import Finished
from services.scheduler.machine.scheduler_events import Submit, TakeIn, Withdraw, Withdrawn
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, entries, plans, started, told
from tests.scheduler.machine.events_from_kv import A, B, C, resident


def guided(policy: PolicyName = PolicyName.SKIP_JOIN_MLFQ) -> CheckedScheduler:
    """A guided job and another one, both resident; the first plan is under way."""
    machine = started(SchedulerConfig(policy=policy, max_batch=2))
    machine.turn(Submit(A, 10, 50, is_guided=True), Submit(B, 10, 50))
    machine.turn(resident(A), resident(B))
    return machine


def test_it_is_in_one_plan_only_until_it_has_started_and_keeps_its_place_if_it_was_passed_over() -> None:
    machine = guided()
    first, second = plans(machine.commands)
    assert entries(first) == [(A, 0, 10), (B, 0, 10)]
    assert entries(second) == [(B, 10, 11)]
    place = machine.scheduler.jobs[A].place
    commands = machine.turn(machine.result(first, cut=[A]))
    assert Finished(first.plan_number, (A,)) in told(commands)
    assert machine.scheduler.jobs[A].place == place
    (third,) = plans(commands)
    assert (A, 0, 10) in entries(third)
    machine.turn(machine.result(second))
    (fourth,) = plans(machine.turn(machine.result(third)))
    assert (A, 10, 11) in entries(fourth), "from then on it is planned ahead like others"


def test_while_its_guide_is_compiled_its_prompt_takes_no_other_prompts_place() -> None:
    machine = started(SchedulerConfig(policy=PolicyName.FCFS, max_batch=4, max_batch_tokens=50))
    machine.turn(Submit(A, 45, 50, is_guided=True))
    (first,) = plans(machine.turn(resident(A)))
    machine.turn(Submit(B, 40, 50))
    (second,) = plans(machine.turn(resident(B)))
    assert entries(second) == [(B, 0, 40)]
    machine.turn(Submit(C, 40, 50))
    machine.turn(resident(C))
    (third,) = plans(machine.turn(machine.result(first, cut=[A])))
    assert entries(third) == [(B, 40, 41), (C, 0, 40)]
    (fourth,) = plans(machine.turn(machine.result(second)))
    assert (A, 0, 45) in entries(fourth), "but it is not put off any longer than that"


def test_once_it_has_started_nothing_of_it_can_be_passed_over() -> None:
    machine = guided()
    first, second = plans(machine.commands)
    (third,) = plans(machine.turn(machine.result(first)))
    machine.turn(machine.result(second))
    with pytest.raises(ProtocolError, match="start with a guide"):
        machine.turn(machine.result(third, cut=[A]))


def test_in_another_group_it_has_a_guide_still() -> None:
    machine = started(SchedulerConfig(policy=PolicyName.FCFS))
    machine.turn(Submit(A, 10, 50, is_guided=True))
    (left,) = [one for one in machine.turn(Withdraw(A)) if isinstance(one, Withdrawn)]
    other = started(SchedulerConfig(policy=PolicyName.FCFS))
    other.turn(TakeIn(left.job))
    (plan,) = plans(other.turn(resident(A)))
    (again,) = plans(other.turn(other.result(plan, cut=[JobId(A)])))
    assert entries(again) == [(A, 0, 10)]
