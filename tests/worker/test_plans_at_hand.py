"""Plans that a worker has at hand: how many it runs in one call, and which it gives back when they are recalled."""

import asyncio

from tests.worker.fake_scheduler_for_worker import SchedulerStream
from tests.worker.worker_rig import Rig, entry
from tests.worker.worker_stream import LIMIT_S


async def at_hand(rig: Rig, count: int) -> SchedulerStream:
    """So many plans are sent: the first is being run until the engine may go on, all others are at hand."""
    scheduler, _ = await rig.next_epoch()
    rig.engine.go_on.clear()
    for number in range(1, count + 1):
        scheduler.send_plan(number, entry())
        if number == 1:
            assert await asyncio.to_thread(rig.engine.started.wait, LIMIT_S)
    for _ in range(count):
        assert await asyncio.to_thread(rig.engine.seen_plans.acquire, timeout=LIMIT_S)
    return scheduler


async def test_half_of_the_plans_at_hand_are_offered_to_one_call_and_each_is_run_once(rig: Rig) -> None:
    scheduler = await at_hand(rig, 10)
    engine = rig.engine
    engine.go_on.set()
    results = [await scheduler.next_result() for _ in range(10)]
    assert [one.result.plan_number for one in results] == list(range(1, 11))
    assert [plan.plan_number for plan in engine.plans] == list(range(1, 11))
    assert engine.offered[1] == [2, 3, 4, 5], "one result waits, and eight plans are behind the second"


async def test_the_engine_can_look_at_the_plan_behind_the_one_that_it_runs(rig: Rig) -> None:
    scheduler = await at_hand(rig, 2)
    rig.engine.go_on.set()
    for _ in range(2):
        await scheduler.next_result()
    assert [plan and plan.plan_number for plan in rig.engine.told_next] == [2, None]


async def test_plans_that_are_not_begun_are_given_back(rig: Rig) -> None:
    scheduler = await at_hand(rig, 5)
    scheduler.send_recall(1)
    assert await scheduler.next_given_back() == (scheduler.epoch, 2), "the first is being run"
    scheduler.send_plan(6, entry())
    rig.engine.go_on.set()
    assert [(await scheduler.next_result()).result.plan_number for _ in range(2)] == [1, 6]


async def test_no_more_plans_are_given_back_than_were_recalled(rig: Rig) -> None:
    scheduler = await at_hand(rig, 5)
    scheduler.send_recall(5)
    assert await scheduler.next_given_back() == (scheduler.epoch, 5)
    rig.engine.go_on.set()
    assert [(await scheduler.next_result()).result.plan_number for _ in range(4)] == [1, 2, 3, 4]


async def test_plans_that_are_run_in_one_call_are_begun(rig: Rig) -> None:
    scheduler = await at_hand(rig, 10)
    rig.engine.held_call = 1
    rig.engine.go_on.set()
    assert await asyncio.to_thread(rig.engine.is_held.wait, LIMIT_S)
    scheduler.send_recall(1)
    assert await scheduler.next_given_back() == (scheduler.epoch, 6), "two to five are being run"
    rig.engine.go_on.set()
    assert [(await scheduler.next_result()).result.plan_number for _ in range(5)] == [1, 2, 3, 4, 5]
    assert rig.engine.offered[1] == [2, 3, 4, 5]


async def test_a_recall_of_nothing_stops_nothing(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    for number in range(1, 4):
        scheduler.send_recall(number)
        assert await scheduler.next_given_back() == (scheduler.epoch, None)
        scheduler.send_plan(number, entry())
        assert (await scheduler.next_result()).result.plan_number == number


async def test_a_recall_of_an_earlier_epoch_has_no_answer(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    scheduler.send_recall(1, epoch=scheduler.epoch - 1)
    scheduler.send_recall(1)
    scheduler.send_plan(1, entry())
    assert await scheduler.next_given_back() == (scheduler.epoch, None)
    assert (await scheduler.next_result()).result.plan_number == 1
