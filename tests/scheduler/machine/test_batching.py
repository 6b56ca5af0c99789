"""Batches, chunks, the token budget, speculation; preemptions, deadlines, admission."""

import pytest

from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.protocol import Release
from services.scheduler.machine.scheduler_events import (
    Cancel,
    KvConnected,
    Reject,
    RejectKind,
    Submit,
    Tick,
    WakeAt,
    WorkerLost,
)
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.checked_scheduler import (
    EPOCH,
    CheckedScheduler,
    ended,
    entries,
    joined,
    machine_with,
    plans,
    rejected,
    shape,
    told,
)
from tests.scheduler.machine.events_from_kv import grown, reclaim, resident


def test_an_iteration_mixes_prefill_and_decode() -> None:
    machine = machine_with([("a", 10, 5)], plans_in_flight=1)
    (one,) = plans(machine.commands)
    machine.turn(Submit(JobId("b"), 20, 5))
    machine.turn(resident(JobId("b"), 30))
    (two,) = plans(machine.turn(machine.result(one)))
    assert shape(two) == {"a": (10, 11), "b": (0, 20)}


def test_no_more_jobs_than_the_maximum_batch() -> None:
    machine = machine_with([(name, 10, 5) for name in "abcde"], max_batch=3)
    assert [list(shape(plan)) for plan in plans(machine.commands)] == [["a", "b", "c"]] * 2


def test_prefills_beyond_the_token_budget_wait() -> None:
    machine = machine_with([(name, 40, 5) for name in "abc"], max_batch=4, max_batch_tokens=100)
    one, two = plans(machine.commands)
    assert shape(one) == {"a": (0, 40), "b": (0, 40)}
    assert shape(two) == {"a": (40, 41), "b": (40, 41), "c": (0, 40)}


def test_a_prefill_longer_than_the_budget_runs_as_the_first_prefill_of_a_batch() -> None:
    machine = machine_with([("a", 500, 5), ("b", 10, 5)], max_batch=4, max_batch_tokens=100)
    one, two = plans(machine.commands)
    assert shape(one) == {"a": (0, 500)}
    assert shape(two) == {"a": (500, 501), "b": (0, 10)}


def test_no_prefill_overtakes_one_of_a_higher_rank_that_did_not_fit() -> None:
    machine = machine_with([("a", 60, 5), ("b", 60, 5), ("c", 10, 5)], max_batch=4, max_batch_tokens=100)
    one, two = plans(machine.commands)
    assert shape(one) == {"a": (0, 60)}
    assert shape(two) == {"a": (60, 61), "b": (0, 60), "c": (0, 10)}


def test_without_chunks_a_prefill_is_one_entry() -> None:
    machine = machine_with([("a", 3000, 5)], plans_in_flight=1)
    assert [shape(plan) for plan in plans(machine.commands)] == [{"a": (0, 3000)}]


def test_with_chunks_a_prefill_goes_on_over_several_plans_and_samples_in_the_last() -> None:
    machine = machine_with([("a", 25, 5)], prefill_chunk_tokens=10)
    one, two = plans(machine.commands)
    assert (shape(one), shape(two)) == ({"a": (0, 10)}, {"a": (10, 20)})
    (three,) = plans(machine.turn(machine.result(one, silent="a")))
    assert shape(three) == {"a": (20, 25)}
    (four,) = plans(machine.turn(machine.result(two, silent="a")))
    assert shape(four) == {"a": (25, 26)}
    assert machine.scheduler.jobs[JobId("a")].output_tokens == 0
    machine.turn(machine.result(three))
    assert machine.scheduler.jobs[JobId("a")].output_tokens == 1


def test_a_chunk_takes_what_is_left_of_the_budget() -> None:
    machine = machine_with([("a", 70, 5), ("b", 70, 5)], prefill_chunk_tokens=64, max_batch=4, max_batch_tokens=100)
    one, two = plans(machine.commands)
    assert shape(one) == {"a": (0, 64), "b": (0, 36)}
    assert shape(two) == {"a": (64, 70), "b": (36, 70)}


def test_between_chunks_a_job_may_be_preempted_and_goes_on_where_it_was() -> None:
    machine = machine_with(
        [("a", 25, 5)],
        policy=PolicyName.FIXED_PRIORITY,
        max_batch=1,
        plans_in_flight=1,
        prefill_chunk_tokens=10,
    )
    (one,) = plans(machine.commands)
    machine.turn(Submit(JobId("b"), 5, 1))
    machine.turn(resident(JobId("b"), 5))
    (two,) = plans(machine.turn(machine.result(one, silent="a")))
    assert shape(two) == {"b": (0, 5)}
    (three,) = plans(machine.turn(machine.result(two)))
    assert shape(three) == {"a": (10, 20)}
    assert machine.scheduler.jobs[JobId("a")].preemptions == 1


def test_two_plans_are_under_way_so_that_the_worker_never_waits() -> None:
    machine = machine_with([("a", 10, 9)])
    under_way = plans(machine.commands)
    for position in range(11, 18):
        assert len(under_way) == 2
        new = plans(machine.turn(machine.result(under_way.pop(0))))
        assert [shape(plan) for plan in new] == [{"a": (position, position + 1)}]
        under_way += new


def test_an_arrival_is_in_the_first_plan_made_after_it_though_only_running_jobs_were_planned_ahead() -> None:
    machine = machine_with([("a", 10, 9)])
    one, _ = plans(machine.commands)
    machine.turn(Submit(JobId("b"), 10, 9))
    assert plans(machine.turn(resident(JobId("b"), 20))) == []
    (three,) = plans(machine.turn(machine.result(one)))
    assert shape(three) == {"a": (11, 12), "b": (0, 10)}


# --- preemptions -----------------------------------------------------------------------------------------------------


def test_a_job_that_makes_way_for_another_is_preempted_once() -> None:
    machine = machine_with([("a", 10, 9)], policy=PolicyName.FIXED_PRIORITY, max_batch=1, plans_in_flight=1)
    (one,) = plans(machine.commands)
    machine.turn(Submit(JobId("b"), 5, 3))
    machine.turn(resident(JobId("b"), 20))
    for _ in range(3):
        (one,) = plans(machine.turn(machine.result(one)))
    assert machine.scheduler.counters.preemptions == 1
    assert machine.scheduler.jobs[JobId("a")].preemptions == 1


def test_sitting_out_for_capacity_is_no_preemption() -> None:
    machine = machine_with([("b", 10, 9)], plans_in_flight=1)
    machine.turn(Submit(JobId("a"), 10, 9))
    (one,) = plans(machine.commands)
    (two,) = plans(machine.turn(resident(JobId("a"), 10), machine.result(one)))
    (three,) = plans(machine.turn(machine.result(two)))
    assert shape(three) == {"b": (11, 12)}
    machine.turn(grown(JobId("a"), 30), machine.result(three))
    assert machine.scheduler.counters.preemptions == 0


def test_having_all_tokens_under_way_is_no_preemption() -> None:
    machine = machine_with([("a", 10, 1), ("b", 10, 5)])
    machine.turn(machine.result(plans(machine.commands)[0]))
    assert machine.scheduler.counters.preemptions == 0


def test_a_running_job_whose_blocks_are_taken_is_preempted() -> None:
    machine = machine_with([("a", 10, 9), ("b", 10, 9)], plans_in_flight=1)
    (one,) = plans(machine.commands)
    machine.turn(reclaim(JobId("b"), JobId("a")), machine.result(one))
    assert machine.scheduler.jobs[JobId("b")].preemptions == 1


# --- deadlines -------------------------------------------------------------------------------------------------------


def test_a_job_whose_deadline_passed_ends_and_frees_its_kv() -> None:
    machine = CheckedScheduler(SchedulerConfig(policy=PolicyName.FCFS))
    machine.start()
    commands = machine.turn(Submit(JobId("a"), 10, 5, deadline_s=3.0), Submit(JobId("b"), 10, 5, deadline_s=9.0))
    assert commands[-1] == WakeAt(3.0)
    commands = machine.turn(Tick(), at_s=3.0)
    assert ended(commands) == [("a", EndReason.DEADLINE)]
    assert told(commands) == [Release(JobId("a"))]
    assert commands[-1] == WakeAt(9.0)


def test_a_deadline_of_a_job_that_ended_is_passed_over() -> None:
    machine = CheckedScheduler(SchedulerConfig(policy=PolicyName.FCFS))
    machine.start()
    machine.turn(Submit(JobId("a"), 10, 5, deadline_s=3.0))
    machine.turn(Cancel(JobId("a"), EndReason.CANCELLED))
    assert machine.turn(Tick(), at_s=3.0) == []


# --- admission -------------------------------------------------------------------------------------------------------


def refusal(machine: CheckedScheduler, prompt_tokens: int, max_tokens: int) -> Reject:
    (reject,) = rejected(machine.turn(Submit(JobId("x"), prompt_tokens, max_tokens)))
    return reject


def test_before_the_first_worker_nothing_is_admitted() -> None:
    machine = CheckedScheduler(SchedulerConfig())
    machine.turn(KvConnected())
    reject = refusal(machine, 10, 10)
    assert reject.kind is RejectKind.NOT_READY
    assert reject.retry_after_s > 0


def test_while_the_worker_restarts_jobs_are_admitted() -> None:
    machine = CheckedScheduler(SchedulerConfig())
    machine.start()
    machine.turn(WorkerLost(EPOCH))
    assert rejected(machine.turn(Submit(JobId("x"), 10, 10))) == []


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "field", "limit"),
    [
        (0, 5, "prompt", "at least one"),
        (5, 0, "sampling.max_tokens", "at least 1"),
        (4000, 1, "prompt", "4000"),
        (3999, 2, "sampling.max_tokens", "4000"),
    ],
)
def test_a_job_over_the_context_is_refused_by_field_and_limit(
    prompt_tokens: int, max_tokens: int, field: str, limit: str
) -> None:
    machine = CheckedScheduler(SchedulerConfig())
    machine.start()
    reject = refusal(machine, prompt_tokens, max_tokens)
    assert (reject.kind, reject.field) == (RejectKind.INVALID, field)
    assert limit in reject.message


def test_a_job_over_the_device_pool_is_refused_and_one_that_fills_it_is_not() -> None:
    machine = CheckedScheduler(SchedulerConfig())
    machine.start(pool_tokens=320)
    assert refusal(machine, 300, 21).field == "sampling.max_tokens"
    assert refusal(machine, 320, 1).field == "prompt"
    assert rejected(machine.turn(Submit(JobId("y"), 300, 20))) == []


def test_jobs_and_tokens_are_bounded_and_an_end_makes_room() -> None:
    machine = CheckedScheduler(SchedulerConfig(max_queued_jobs=2, max_queued_tokens=100))
    machine.start()
    machine.turn(Submit(JobId("a"), 30, 10))
    full = refusal(machine, 50, 11)
    assert full.kind is RejectKind.FULL
    assert 0 < full.retry_after_s <= 30
    machine.turn(Submit(JobId("b"), 10, 10))
    assert refusal(machine, 1, 1).kind is RejectKind.FULL
    machine.turn(Cancel(JobId("a"), EndReason.CANCELLED))
    assert rejected(machine.turn(Submit(JobId("c"), 50, 10))) == []
    assert machine.scheduler.counters.rejections == {"full": 2}


# --- cost ------------------------------------------------------------------------------------------------------------


def walked(queued: int) -> int:
    """How many ready jobs a decision looks at with so many of them queued, all resident."""
    machine = CheckedScheduler(SchedulerConfig())
    machine.start()
    names = [f"j{number}" for number in range(queued)]
    residents = [resident(JobId(name), 100, stay_number=number) for number, name in enumerate(names)]
    machine.scheduler.handle([Submit(JobId(name), 10, 90) for name in names], 0.0)
    commands = machine.scheduler.handle(residents, 0.0)
    looks = 0
    ready = machine.scheduler.ranking.ready

    def counting() -> object:
        nonlocal looks
        for job in ready():
            looks += 1
            yield job

    machine.scheduler.ranking.ready = counting  # type: ignore[method-assign, assignment]
    for plan in plans(commands):
        machine.scheduler.handle([machine.result(plan)], 0.5)
    return looks


def test_a_decision_looks_at_no_more_jobs_when_more_are_queued() -> None:
    assert walked(2000) == walked(100) <= 2 * 2 * 16


def test_plans_of_a_new_worker_are_numbered_from_zero() -> None:
    machine = machine_with([("a", 10, 5)])
    machine.turn(joined(epoch=8))
    commands = machine.turn(resident(JobId("a"), 100, epoch=Epoch(8)))
    assert [plan.plan_number for plan in plans(commands)] == [0, 1]
    assert entries(plans(commands)[0]) == [("a", 0, 10)]
