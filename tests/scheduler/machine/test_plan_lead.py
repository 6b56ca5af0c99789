"""Plans ahead for a job that is alone: as many as short iterations need, and no more than one that arrives can wait
for.
"""

import pytest

from services.domain.ids import Epoch, JobId
from services.domain.protocol import Finished, Release
from services.scheduler.machine.plan_lead import LEAD_S, MOST_AHEAD, PlanLead
from services.scheduler.machine.scheduler_events import KvConnected, Submit, WorkerJoined
from tests.scheduler.machine.checked_scheduler import (
    COST,
    EPOCH,
    CheckedScheduler,
    ended,
    entries,
    fcfs,
    joined,
    plans,
    started,
    told,
)
from tests.scheduler.machine.events_from_kv import A, B, grown, resident

SHORT_S = LEAD_S / 100


@pytest.mark.parametrize(
    ("iteration_s", "most"),
    [(SHORT_S, MOST_AHEAD), (LEAD_S / 4.5, 4), (LEAD_S / 2, 2), (0.5, 2)],
)
def test_so_many_iterations_are_planned_as_take_the_lead_but_never_less_than_two(iteration_s: float, most: int) -> None:
    lead = PlanLead(None)
    assert lead.most == lead.least == 2
    for _ in range(100):
        lead.finished(iteration_s)
    assert (lead.most, lead.least) == (most, 2)


def test_one_long_iteration_among_short_ones_does_not_end_the_lead() -> None:
    lead = PlanLead(None)
    for _ in range(100):
        lead.finished(SHORT_S)
    lead.finished(LEAD_S)
    assert lead.most == MOST_AHEAD


def test_a_fixed_number_stays_whatever_iterations_take() -> None:
    lead = PlanLead(3)
    lead.finished(SHORT_S)
    assert (lead.most, lead.least) == (3, 3)


def test_stages_of_a_pipeline_get_one_plan_each_and_one_more() -> None:
    lead = PlanLead(None)
    lead.calibrate(2)
    lead.finished(SHORT_S)
    assert (lead.most, lead.least) == (3, 3)


def test_a_new_worker_begins_without_a_lead() -> None:
    lead = PlanLead(None)
    lead.finished(SHORT_S)
    lead.calibrate(1)
    assert lead.most == 2


# --- the scheduler ---------------------------------------------------------------------------------------------------


def short_iterations(*names: JobId) -> CheckedScheduler:
    """These jobs have their prefills behind them, and iterations are short."""
    machine = started(fcfs(), *names)
    first, _ = plans(machine.turn(*(resident(name) for name in names)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    return machine


def under_way(machine: CheckedScheduler) -> int:
    return len(machine.scheduler.iterations.unfinished)


def test_the_plans_ahead_are_made_in_one_turn_each_a_position_further() -> None:
    machine = started(fcfs(), A)
    first, _ = plans(machine.turn(resident(A)))
    made = plans(machine.turn(machine.result(first, duration_s=SHORT_S)))
    assert [entries(plan) for plan in made] == [[(A, place, place + 1)] for place in range(11, 18)]
    assert under_way(machine) == MOST_AHEAD


def test_iterations_of_a_large_model_have_no_plans_ahead() -> None:
    machine = started(fcfs(), A)
    first, _ = plans(machine.turn(resident(A)))
    assert len(plans(machine.turn(machine.result(first, duration_s=0.04)))) == 1


def test_no_plan_is_made_ahead_while_the_job_waits_for_blocks() -> None:
    machine = started(fcfs(), A)
    first, _ = plans(machine.turn(resident(A, capacity=14)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    assert under_way(machine) == 4, "the fourth plan is the last for which it has room"
    machine.turn(grown(A, 100))
    assert under_way(machine) == MOST_AHEAD


def test_no_token_beyond_the_last_is_planned_ahead() -> None:
    machine = started(fcfs(), A, output=5)
    first, _ = plans(machine.turn(resident(A)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    assert under_way(machine) == 4


@pytest.mark.parametrize("other_is_resident", [True, False])
def test_with_a_second_job_who_runs_is_decided_after_every_iteration(other_is_resident: bool) -> None:
    machine = short_iterations(A)
    assert under_way(machine) == MOST_AHEAD
    machine.turn(Submit(B, 10, 100))
    if other_is_resident:
        machine.turn(resident(B))
    waiting = [plan for plan in plans(machine.commands) if plan.plan_number > 0]
    for plan in waiting[:-2]:
        assert plans(machine.turn(machine.result(plan, duration_s=SHORT_S))) == []
    (made,) = plans(machine.turn(machine.result(waiting[-2], duration_s=SHORT_S)))
    assert [name for name, _, _ in entries(made)] == ([A, B] if other_is_resident else [A])


def test_who_ends_early_is_released_when_the_plans_ahead_have_ended() -> None:
    machine = short_iterations(A)
    waiting = [command for command in plans(machine.commands) if command.plan_number > 0]
    assert ended(machine.turn(machine.result(waiting[0], duration_s=SHORT_S, ends=[A]))) != []
    for plan in waiting[1:-1]:
        assert Release(A) not in told(machine.turn(machine.result(plan, duration_s=SHORT_S)))
    last = machine.turn(machine.result(waiting[-1], duration_s=SHORT_S))
    assert told(last) == [Finished(waiting[-1].plan_number), Release(A)]


def test_a_worker_of_several_stages_that_joins_ends_the_lead() -> None:
    machine = short_iterations(A)
    machine.turn(WorkerJoined(Epoch(EPOCH + 1), 100_000, 4000, COST, 2), KvConnected())
    assert machine.scheduler.iterations.lead.most == 3


def test_a_worker_that_joins_again_is_measured_anew() -> None:
    machine = short_iterations(A)
    machine.turn(joined(epoch=EPOCH + 1))
    assert machine.scheduler.iterations.lead.most == 2
