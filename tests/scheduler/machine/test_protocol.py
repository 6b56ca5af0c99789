"""PROTOCOL's rules for the scheduler; each test is named after what goes wrong without the rule."""

import pytest

from services.domain.generation import EndReason
from services.domain.ids import PlanNumber
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Finished,
    IterationResult,
    Order,
    OrderChange,
    Planned,
    Rank,
    Refuse,
    Release,
    SampledToken,
)
from services.scheduler.job import JobState
from services.scheduler.machine.scheduler_events import Cancel, Emit, End, SendPlan, Submit, Tick, ToKv
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.checked_scheduler import EPOCH, ended, entries, fcfs, plans, started, state, told
from tests.scheduler.machine.events_from_kv import A, B, C, grown, reclaim, resident


def test_a_life_of_a_job_is_told_to_gateway_worker_and_kv_manager_in_this_order() -> None:
    machine = started()
    rank = Rank(0, 0.0, 0)
    assert machine.turn(Submit(A, 10, 2)) == [
        ToKv(EPOCH, Arrive(ArrivedJob(A, 10, 11, 0))),
        ToKv(EPOCH, Order((OrderChange(A, rank),))),
    ]
    prefill, decode = ((A, 0, 10),), ((A, 10, 11),)
    assert machine.turn(resident(A)) == [
        SendPlan(EPOCH, PlanNumber(0), prefill),  # type: ignore[arg-type]
        ToKv(EPOCH, Planned(PlanNumber(0), prefill)),  # type: ignore[arg-type]
        SendPlan(EPOCH, PlanNumber(1), decode),  # type: ignore[arg-type]
        ToKv(EPOCH, Planned(PlanNumber(1), decode)),  # type: ignore[arg-type]
    ]
    first = IterationResult(EPOCH, PlanNumber(0), (SampledToken(A, 41, False),), (), 0.5)
    assert machine.turn(first, at_s=0.5) == [ToKv(EPOCH, Finished(PlanNumber(0))), Emit(A, PlanNumber(0), 0, 41)]
    last = IterationResult(EPOCH, PlanNumber(1), (SampledToken(A, 42, False),), (), 0.25)
    assert machine.turn(last, at_s=0.75) == [
        ToKv(EPOCH, Finished(PlanNumber(1))),
        Emit(A, PlanNumber(1), 1, 42),
        End(A, EndReason.LENGTH, 0, 0.0, 0.5, 0.25),
        ToKv(EPOCH, Release(A)),
    ]
    assert not machine.scheduler.jobs


# --- rule 1 ----------------------------------------------------------------------------------------------------------


def test_rule_1_a_job_that_is_not_resident_would_be_planned_on_an_empty_table() -> None:
    machine = started(fcfs(), A, B)
    commands = machine.turn(resident(B))
    assert [entries(plan) for plan in plans(commands)] == [[(B, 0, 10)], [(B, 10, 11)]]


def test_rule_1_a_job_short_of_capacity_would_write_beyond_its_table_and_sits_out_instead() -> None:
    machine = started(fcfs(), A, B)
    one, two = plans(machine.turn(resident(A, capacity=10), resident(B)))
    assert entries(one) == [(A, 0, 10), (B, 0, 10)]
    assert entries(two) == [(B, 10, 11)]
    three = plans(machine.turn(machine.result(one), grown(A, 26)))
    assert entries(three[0]) == [(A, 10, 11), (B, 11, 12)]


def test_rule_1_nothing_waits_for_a_job_that_sits_out() -> None:
    machine = started(fcfs(max_batch=1), A, B)
    one, two = plans(machine.turn(resident(A, capacity=10), resident(B)))
    assert (entries(one), entries(two)) == ([(A, 0, 10)], [(B, 0, 10)])


def test_rule_1_a_prefill_waits_for_the_capacity_of_all_its_tokens() -> None:
    machine = started(fcfs(), A)
    assert plans(machine.turn(resident(A, capacity=9))) == []
    assert entries(plans(machine.turn(grown(A, 10)))[0]) == [(A, 0, 10)]


# --- rule 2 ----------------------------------------------------------------------------------------------------------


def test_rule_2_speculation_past_max_tokens_would_write_a_token_that_nobody_asked_for() -> None:
    machine = started(fcfs(plans_in_flight=4), A, output=2)
    assert [entries(plan) for plan in plans(machine.turn(resident(A)))] == [[(A, 0, 10)], [(A, 10, 11)]]


def test_rule_2_the_tokens_of_a_job_that_turned_out_to_have_ended_are_dropped() -> None:
    machine = started(fcfs(), A)
    one, two = plans(machine.turn(resident(A)))
    assert ended(machine.turn(machine.result(one, ends=[A]))) == [(A, EndReason.STOP)]
    assert machine.turn(machine.result(two)) == [ToKv(EPOCH, Finished(PlanNumber(1))), ToKv(EPOCH, Release(A))]


# --- rule 3 ----------------------------------------------------------------------------------------------------------


def test_rule_3_released_early_a_block_would_be_anothers_when_the_next_plan_writes_its_extra_token() -> None:
    machine = started(fcfs(plans_in_flight=3), A)
    one, two, three = plans(machine.turn(resident(A)))
    assert Release(A) not in told(machine.turn(machine.result(one, ends=[A])))
    assert Release(A) not in told(machine.turn(machine.result(two)))
    assert told(machine.turn(machine.result(three))) == [Finished(PlanNumber(2)), Release(A)]


def test_rule_3_a_cancelled_job_in_no_plan_is_released_at_once() -> None:
    machine = started(fcfs(), A)
    commands = machine.turn(Cancel(A, EndReason.CANCELLED))
    assert (ended(commands), told(commands)) == ([(A, EndReason.CANCELLED)], [Release(A)])


@pytest.mark.parametrize("plans_in_flight", [1, 2, 3])
def test_rule_3_a_cancelled_job_is_released_within_the_iterations_under_way(plans_in_flight: int) -> None:
    machine = started(fcfs(plans_in_flight=plans_in_flight), A, B)
    queued = plans(machine.turn(resident(A), resident(B)))
    assert ended(machine.turn(Cancel(A, EndReason.CANCELLED))) == [(A, EndReason.CANCELLED)]
    iterations = 0
    while machine.scheduler.knows(A):
        queued += plans(machine.turn(machine.result(queued.pop(0))))
        iterations += 1
    assert iterations <= plans_in_flight
    assert Release(A) in told(machine.commands)
    assert all(A not in [entry.job_id for entry in plan.entries] for plan in queued)


# --- rule 4 ----------------------------------------------------------------------------------------------------------


def test_rule_4_consent_before_the_plans_are_done_would_take_the_table_from_under_the_last_plan() -> None:
    machine = started(fcfs(), A, B)
    one, two = plans(machine.turn(resident(A), resident(B)))
    assert machine.turn(reclaim(B, A)) == []
    three = machine.turn(machine.result(one))
    assert entries(plans(three)[0]) == [(A, 11, 12)]  # no new plan names it
    assert Ack(B) not in told(three)
    commands = machine.turn(machine.result(two))
    assert told(commands)[:2] == [Finished(PlanNumber(1)), Ack(B)]
    assert state(machine, B) is JobState.OUT


def test_rule_4_refusing_because_it_is_planned_would_deadlock_two_jobs_that_both_must_grow() -> None:
    machine = started(fcfs(), A, B)
    machine.turn(resident(A, capacity=10), resident(B, capacity=10))
    assert Refuse(B) not in told(machine.turn(reclaim(B, A)))
    assert state(machine, B) is JobState.DRAINING


def test_rule_4_a_job_that_outranks_the_beneficiary_by_now_stays() -> None:
    machine = started(fcfs(), A, B)
    machine.turn(resident(A))
    assert machine.turn(reclaim(A, B)) == [ToKv(EPOCH, Refuse(A))]
    assert state(machine, A) is JobState.RESIDENT


def test_rule_4_the_order_that_makes_the_job_outrank_is_told_before_the_refusal() -> None:
    machine = started(SchedulerConfig(policy=PolicyName.SRPT, max_batch=1, plans_in_flight=1), A, B, output=50)
    (one,) = plans(machine.turn(resident(A)))
    machine.turn(Submit(C, 5, 50))  # outranks both
    messages = told(machine.turn(machine.result(one), reclaim(A, C)))
    kinds = [type(message) for message in messages]
    assert kinds.index(Order) < kinds.index(Refuse)  # A now has one token less to go than C


def test_rule_4_room_ahead_of_need_is_always_given() -> None:
    machine = started(fcfs(), A)
    machine.turn(resident(A))
    machine.turn(reclaim(A, None))
    assert state(machine, A) is JobState.DRAINING


def test_rule_4_nobody_is_taken_for_a_job_that_was_released_meanwhile() -> None:
    machine = started(fcfs(), A, B)
    machine.turn(resident(B))
    assert told(machine.turn(reclaim(B, A), Cancel(A, EndReason.CANCELLED))) == [Release(A), Refuse(B)]


def test_rule_4_release_answers_the_request_for_a_job_that_ended() -> None:
    machine = started(fcfs(), A)
    machine.turn(resident(A))
    messages = told(machine.turn(reclaim(A, None), Cancel(A, EndReason.CANCELLED)))
    assert messages == []
    assert state(machine, A) is JobState.CLOSING


def test_rule_4_a_draining_job_that_is_cancelled_is_released_and_not_acknowledged() -> None:
    machine = started(fcfs(), A)
    one, two = plans(machine.turn(resident(A)))
    machine.turn(reclaim(A, None))
    machine.turn(Cancel(A, EndReason.CANCELLED))
    messages = told(machine.turn(machine.result(one), machine.result(two)))
    assert [message for message in messages if not isinstance(message, Finished)] == [Release(A)]


def test_a_reclaimed_job_goes_on_from_its_last_token_when_its_kv_is_back() -> None:
    machine = started(fcfs(plans_in_flight=1), A)
    (one,) = plans(machine.turn(resident(A)))
    machine.turn(reclaim(A, None))
    assert Ack(A) in told(machine.turn(machine.result(one)))
    (two,) = plans(machine.turn(resident(A, capacity=26, valid=10)))
    assert entries(two) == [(A, 10, 11)]


def test_a_job_whose_kv_was_dropped_is_prefilled_with_all_its_tokens_and_that_is_counted() -> None:
    machine = started(fcfs(plans_in_flight=1), A)
    (one,) = plans(machine.turn(resident(A)))
    (two,) = plans(machine.turn(machine.result(one)))
    machine.turn(reclaim(A, None))
    machine.turn(machine.result(two))
    (three,) = plans(machine.turn(resident(A, valid=0)))
    assert entries(three) == [(A, 0, 12)]
    assert machine.scheduler.counters.recomputed_tokens == 11
    commands = machine.turn(machine.result(three))
    assert [command.token_number for command in commands if isinstance(command, Emit)] == [2]


# --- rule 5 ----------------------------------------------------------------------------------------------------------


def test_rule_5_growth_announced_late_would_plan_a_job_that_is_being_offloaded() -> None:
    machine = started(fcfs(plans_in_flight=1), A)
    (one,) = plans(machine.turn(resident(A, capacity=10)))
    machine.turn(reclaim(A, None))
    machine.turn(machine.result(one))
    assert plans(machine.turn(grown(A, 26))) == []
    assert state(machine, A) is JobState.OUT


def test_rule_5_growth_makes_no_job_resident_that_never_was() -> None:
    machine = started(fcfs(), A)
    assert machine.turn(grown(A, 26)) == []


# --- rule 6 ----------------------------------------------------------------------------------------------------------


def test_rule_6_two_jobs_promoted_in_turn_would_take_each_others_blocks_before_either_ran() -> None:
    machine = started(SchedulerConfig(policy=PolicyName.FIXED_PRIORITY, plans_in_flight=1), A)
    machine.turn(Submit(B, 9, 100))  # shorter than A, and A has not run
    assert [job.job_id for job in machine.scheduler.ranking.by_rank()] == [A, B]
    machine.turn(resident(B))
    machine.turn(Submit(C, 8, 100))
    assert [job.job_id for job in machine.scheduler.ranking.by_rank()] == [A, C, B]


def test_rule_6_the_top_job_falls_back_to_its_place_when_it_ran_one_iteration() -> None:
    machine = started(SchedulerConfig(policy=PolicyName.FIXED_PRIORITY, plans_in_flight=1), A)
    machine.turn(Submit(B, 9, 100))
    (one,) = plans(machine.turn(resident(A)))
    messages = told(machine.turn(machine.result(one)))
    assert [job.job_id for job in machine.scheduler.ranking.by_rank()] == [B, A]
    assert Order((OrderChange(A, Rank(0, 10.0, 0)),)) in messages


def test_rule_6_a_promoted_job_demoted_between_chunks_would_lose_them_to_the_next_one_again_and_again() -> None:
    machine = started(
        SchedulerConfig(
            policy=PolicyName.SKIP_JOIN_MLFQ, plans_in_flight=1, prefill_chunk_tokens=100, starvation_limit_s=5.0
        )
    )
    machine.turn(Submit(A, 300, 5))
    machine.turn(Tick(), at_s=5.0)
    (chunk,) = plans(machine.turn(resident(A, capacity=310)))
    machine.turn(Submit(B, 1, 5))
    for end in (200, 300):
        (chunk,) = plans(machine.turn(machine.result(chunk, silent=[A])))
        assert entries(chunk) == [(A, end - 100, end)]
        assert machine.scheduler.jobs[A].place > machine.scheduler.jobs[B].place
        assert [job.job_id for job in machine.scheduler.ranking.by_rank()] == [A, B]
    machine.turn(machine.result(chunk))
    assert [job.job_id for job in machine.scheduler.ranking.by_rank()] == [B, A]


def test_rule_6_the_top_job_falls_back_when_it_is_cancelled() -> None:
    machine = started(SchedulerConfig(policy=PolicyName.FIXED_PRIORITY), A)
    machine.turn(Submit(B, 9, 100), Submit(C, 8, 100))
    machine.turn(Cancel(A, EndReason.CANCELLED))
    assert [job.job_id for job in machine.scheduler.ranking.by_rank()] == [C, B]


# --- rule 28 ---------------------------------------------------------------------------------------------------------


def test_rule_28_residency_of_an_earlier_job_with_the_same_id_would_plan_the_new_one_without_blocks() -> None:
    machine = started(fcfs(), A)
    assert told(machine.turn(Cancel(A, EndReason.CANCELLED))) == [Release(A)]
    machine.turn(Submit(A, 10, 100))
    assert machine.turn(resident(A, stay_number=0)) == []
    assert state(machine, A) is JobState.OUT
    (one, _) = plans(machine.turn(resident(A, stay_number=1)))
    assert entries(one) == [(A, 0, 10)]


def test_rule_28_a_request_for_an_earlier_job_with_the_same_id_would_drain_one_that_has_nothing() -> None:
    machine = started(fcfs(), A)
    machine.turn(Cancel(A, EndReason.CANCELLED))
    machine.turn(Submit(A, 10, 100))
    assert machine.turn(reclaim(A, stay_number=0), grown(A, 30, stay_number=0)) == []
    assert state(machine, A) is JobState.OUT


def test_rule_28_growth_of_an_earlier_job_with_the_same_id_would_plan_the_new_one_beyond_its_table() -> None:
    machine = started(fcfs(), A)
    machine.turn(Cancel(A, EndReason.CANCELLED))
    machine.turn(Submit(A, 10, 100))
    machine.turn(resident(A, capacity=10, stay_number=1), grown(A, 26, stay_number=0))
    assert machine.scheduler.jobs[A].capacity_tokens == 10
