"""PROTOCOL rules 19 and 23: epochs of the worker, and peers that are lost or break the protocol."""

import pytest

from services.domain.errors import ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import Epoch, PlanNumber
from services.domain.protocol import (
    ArrivedJob,
    IterationResult,
    Jobs,
    OrderChange,
    Rank,
    SampledToken,
)
from services.scheduler.machine.scheduler import NO_WORKER, Scheduler
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Command,
    DropWorker,
    KvConnected,
    KvLost,
    Submit,
    ToKv,
    WorkerLost,
)
from tests.scheduler.machine.checked_scheduler import (
    EPOCH,
    TOKEN,
    CheckedScheduler,
    ended,
    entries,
    fcfs,
    joined,
    plans,
    started,
    told,
)
from tests.scheduler.machine.events_from_kv import A, B, C, resident

# --- rules 19 and 23 -------------------------------------------------------------------------------------------------


def test_rule_19_an_old_resident_after_a_new_worker_would_be_planned_on_an_empty_table() -> None:
    machine = started(fcfs(), A)
    machine.turn(joined(epoch=8))
    assert machine.turn(resident(A, epoch=EPOCH)) == []
    assert plans(machine.turn(resident(A, epoch=Epoch(8))))


def test_rule_19_the_result_of_an_earlier_life_of_the_worker_is_dropped() -> None:
    machine = started(fcfs(), A)
    one, _ = plans(machine.turn(resident(A)))
    machine.turn(joined(epoch=8))
    assert machine.turn(machine.result(one)) == []


def test_rule_19_a_worker_of_an_older_epoch_changes_nothing() -> None:
    machine = started(fcfs(), A)
    machine.turn(resident(A))
    assert machine.turn(joined(epoch=6)) == []
    assert machine.turn(WorkerLost(Epoch(6))) == []
    assert machine.scheduler.epoch == EPOCH


def test_rule_23_after_a_new_worker_every_job_is_out_with_nothing_valid_and_the_kv_manager_is_told_all() -> None:
    machine = started(fcfs(), A, B, C)
    one, _ = plans(machine.turn(resident(A), resident(B)))
    machine.turn(machine.result(one, ends=[B]))  # B is closing: a plan names it
    commands = machine.turn(joined(epoch=8))
    assert commands == [
        ToKv(
            Epoch(8),
            Jobs(
                Epoch(8),
                (ArrivedJob(A, 11, 109, 0), ArrivedJob(C, 10, 109, 2)),
                (OrderChange(A, Rank(0, 0.0, 0)), OrderChange(C, Rank(0, 0.0, 2))),
                16,
                (),
                None,
                displaces=False,
            ),
        )
    ]
    assert not machine.scheduler.knows(B)
    (again, _) = plans(machine.turn(resident(A, epoch=Epoch(8))))
    assert again.plan_number == 0
    assert entries(again) == [(A, 0, 11)]
    assert machine.scheduler.counters.recomputed_tokens == 10


def test_a_lost_worker_keeps_its_jobs_and_nothing_is_sent_to_anybody_until_the_next() -> None:
    machine = started(fcfs(), A)
    machine.turn(resident(A))
    assert machine.turn(WorkerLost(EPOCH)) == []
    assert machine.turn(Submit(B, 10, 10)) == []
    assert machine.scheduler.epoch == NO_WORKER
    (message,) = told(machine.turn(joined(epoch=8)))
    assert isinstance(message, Jobs)
    assert [job.job_id for job in message.jobs] == [A, B]


def test_a_lost_kv_manager_makes_the_worker_come_back_with_empty_pools() -> None:
    machine = started(fcfs(), A)
    machine.turn(resident(A))
    (drop,) = machine.turn(KvLost())
    assert isinstance(drop, DropWorker)
    assert drop.epoch == EPOCH
    assert machine.turn(KvConnected()) == []
    assert [type(message) for message in told(machine.turn(joined(epoch=8)))] == [Jobs]


def test_a_worker_that_joined_before_the_kv_manager_is_kept() -> None:
    machine = CheckedScheduler(fcfs())
    assert machine.turn(joined()) == []
    assert machine.turn(KvLost()) == []
    machine.turn(Submit(A, 10, 10))
    (message,) = told(machine.turn(KvConnected()))
    assert isinstance(message, Jobs)
    assert [job.job_id for job in message.jobs] == [A]


def test_the_kv_manager_never_hears_of_a_job_that_ended_before_it_was_told() -> None:
    machine = CheckedScheduler(fcfs())
    machine.turn(joined())
    messages = told(machine.turn(Submit(A, 10, 10), Cancel(A, EndReason.CANCELLED), KvConnected()))
    assert [type(message) for message in messages] == [Jobs]
    assert not machine.scheduler.knows(A)


def test_a_job_that_does_not_fit_the_next_workers_pool_ends_with_abort() -> None:
    machine = started(fcfs(), A)
    commands = machine.turn(joined(epoch=8, pool_tokens=100))
    assert ended(commands) == [(A, EndReason.ABORT)]
    assert [type(message) for message in told(commands)] == [Jobs]


# --- peers that break the protocol -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        IterationResult(EPOCH, PlanNumber(1), (SampledToken(A, TOKEN, False),), (), 0.1),
        IterationResult(EPOCH, PlanNumber(0), (), (), 0.1),
        IterationResult(EPOCH, PlanNumber(0), (SampledToken(B, TOKEN, False),), (), 0.1),
        IterationResult(EPOCH, PlanNumber(0), (SampledToken(A, TOKEN, False),) * 2, (), 0.1),
        IterationResult(EPOCH, PlanNumber(0), (), (A,), 0.1),
    ],
)
def test_a_result_that_does_not_fit_the_oldest_plan_is_refused_loudly(result: IterationResult) -> None:
    machine = started(fcfs(), A, B)
    machine.turn(resident(A))
    with pytest.raises(ProtocolError, match="plan"):
        machine.turn(result)


def test_an_illegal_move_tells_the_jobs_story() -> None:
    machine = started(fcfs(), A)
    machine.turn(resident(A, capacity=123), at_s=4.5)
    with pytest.raises(
        ProtocolError, match=r"job a: illegal move resident -> resident .* History: 4.5.* resident \(capacity 123"
    ):
        machine.turn(resident(A))


def test_a_live_scheduler_drops_the_worker_when_a_peer_breaks_the_protocol_and_serves_on() -> None:
    scheduler = Scheduler(fcfs(), strict=False)
    scheduler.handle([joined(), KvConnected(), Submit(A, 10, 3)], 0.0)
    commands: list[Command] = scheduler.handle([*2 * [resident(A, stay_number=0)], Submit(B, 10, 3)], 0.0)
    assert [type(command) for command in commands] == [DropWorker]
    scheduler.check()
    scheduler.handle([joined(epoch=8)], 0.0)
    commands = scheduler.handle(
        [resident(A, epoch=Epoch(8), stay_number=0), resident(B, epoch=Epoch(8), stay_number=1)], 0.0
    )
    assert entries(plans(commands)[0]) == [(A, 0, 10), (B, 0, 10)]
    scheduler.check()
