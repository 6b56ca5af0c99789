"""Plans ahead while the batch goes on as it is: as many as short iterations need, and no more than a job that arrives
can wait for.
"""

import pytest

from services.domain.ids import Epoch
from services.domain.protocol import Finished, Release
from services.scheduler.machine.plan_lead import LEAD_S, MOST_AHEAD, MOST_AHEAD_ALONE, PlanLead
from services.scheduler.machine.scheduler_events import KvConnected, Submit, WorkerJoined
from tests.scheduler.machine.checked_scheduler import (
    COST,
    EPOCH,
    ended,
    entries,
    fcfs,
    joined,
    plans,
    started,
    told,
)
from tests.scheduler.machine.events_from_kv import A, B, C, grown, resident
from tests.scheduler.machine.short_iterations import SHORT_S, short_iterations, under_way


@pytest.mark.parametrize(
    ("iteration_s", "most"),
    [(SHORT_S, MOST_AHEAD), (LEAD_S / 4.5, 4), (LEAD_S / 2, 2), (0.5, 2)],
)
def test_so_many_iterations_are_planned_as_take_the_lead_but_never_less_than_two(iteration_s: float, most: int) -> None:
    lead = PlanLead(None)
    assert lead.most(2, 0.0) == lead.least == 2
    for _ in range(100):
        lead.finished(iteration_s)
    assert (lead.most(2, 0.0), lead.least) == (most, 2)


def test_more_are_planned_for_a_job_that_is_alone_because_no_other_waits_for_its_place() -> None:
    lead = PlanLead(None)
    lead.finished(SHORT_S)
    assert (lead.most(1, 0.0), lead.most(2, 0.0)) == (MOST_AHEAD_ALONE, MOST_AHEAD)


def test_one_long_iteration_among_short_ones_does_not_end_the_lead() -> None:
    lead = PlanLead(None)
    for _ in range(100):
        lead.finished(SHORT_S)
    lead.finished(LEAD_S / 2)
    assert lead.most(2, 0.0) == MOST_AHEAD


def test_after_a_recall_the_lead_is_no_longer_than_the_time_since_then() -> None:
    lead = PlanLead(None)
    lead.finished(SHORT_S)
    lead.recalled(10.0)
    assert [lead.most(2, 10.0 + SHORT_S * ahead) for ahead in (0.5, 5.5, 90.0)] == [2, 5, MOST_AHEAD]


def test_a_fixed_number_stays_whatever_iterations_take() -> None:
    lead = PlanLead(3)
    lead.finished(SHORT_S)
    assert (lead.most(1, 0.0), lead.least) == (3, 3)


def test_stages_of_a_pipeline_get_one_plan_each_and_one_more() -> None:
    lead = PlanLead(None)
    lead.calibrate(2)
    lead.finished(SHORT_S)
    assert (lead.most(1, 0.0), lead.least) == (3, 3)


def test_a_new_worker_begins_without_a_lead() -> None:
    lead = PlanLead(None)
    lead.finished(SHORT_S)
    lead.calibrate(1)
    assert lead.most(1, 0.0) == 2


# --- the scheduler ---------------------------------------------------------------------------------------------------


def test_the_plans_ahead_are_made_in_one_turn_each_a_position_further() -> None:
    machine = started(fcfs(), A)
    first, _ = plans(machine.turn(resident(A)))
    made = plans(machine.turn(machine.result(first, duration_s=SHORT_S)))
    assert [entries(plan) for plan in made] == [[(A, place, place + 1)] for place in range(11, 42)]
    assert under_way(machine) == MOST_AHEAD_ALONE


def test_iterations_of_a_large_model_have_no_plans_ahead() -> None:
    machine = started(fcfs(), A)
    first, _ = plans(machine.turn(resident(A)))
    assert len(plans(machine.turn(machine.result(first, duration_s=0.8 * LEAD_S)))) == 1


def test_no_plan_is_made_ahead_while_the_job_waits_for_blocks() -> None:
    machine = started(fcfs(), A)
    first, _ = plans(machine.turn(resident(A, capacity=14)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    assert under_way(machine) == 4, "the fourth plan is the last for which it has room"
    machine.turn(grown(A, 100))
    assert under_way(machine) == MOST_AHEAD_ALONE


def test_no_token_beyond_the_last_is_planned_ahead() -> None:
    machine = started(fcfs(), A, output=5)
    first, _ = plans(machine.turn(resident(A)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    assert under_way(machine) == 4


def test_jobs_that_all_can_run_have_plans_ahead_for_all_of_them() -> None:
    machine = short_iterations(A, B)
    assert under_way(machine) == MOST_AHEAD
    made = [plan for plan in plans(machine.commands) if plan.plan_number > 1]
    assert [entries(plan) for plan in made] == [
        [(A, place, place + 1), (B, place, place + 1)] for place in range(11, 10 + MOST_AHEAD)
    ]


def test_no_plan_is_made_ahead_while_a_job_that_could_join_the_batch_waits_for_blocks() -> None:
    machine = short_iterations(A)
    machine.turn(Submit(B, 10, 100))
    waiting = [plan for plan in plans(machine.commands) if plan.plan_number > 0]
    for plan in waiting[:-2]:
        assert plans(machine.turn(machine.result(plan, duration_s=SHORT_S))) == []
    (made,) = plans(machine.turn(machine.result(waiting[-2], duration_s=SHORT_S)))
    assert [name for name, _, _ in entries(made)] == [A]
    (joined_by_b, *ahead) = plans(machine.turn(machine.result(waiting[-1], duration_s=SHORT_S), resident(B)))
    assert [name for name, _, _ in entries(joined_by_b)] == [A, B]
    assert len(ahead) == MOST_AHEAD - 2


def test_a_full_batch_has_plans_ahead_whoever_waits() -> None:
    machine = started(fcfs(max_batch=1), A, B)
    first, _ = plans(machine.turn(resident(A)))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    assert under_way(machine) == MOST_AHEAD


def test_no_plan_is_made_ahead_while_one_of_a_full_batch_waits_for_blocks() -> None:
    machine = started(fcfs(max_batch=2), A, B, C)
    first, _ = plans(machine.turn(resident(A, capacity=14), *(resident(name) for name in (B, C))))
    machine.turn(machine.result(first, duration_s=SHORT_S))
    assert under_way(machine) == 4, "the fourth plan is the last for which A has room"
    machine.turn(grown(A, 100))
    assert under_way(machine) == MOST_AHEAD


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
    assert machine.scheduler.iterations.lead.most(1, 0.0) == 3


def test_a_worker_that_joins_again_is_measured_anew() -> None:
    machine = short_iterations(A)
    machine.turn(joined(epoch=EPOCH + 1))
    assert machine.scheduler.iterations.lead.most(1, 0.0) == 2
