"""The worker's epochs: joining, working, losing a peer, being refused. The engine here is a fake; the streams are
real.
"""

import asyncio

import pytest

from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import (
    GroupTakenError,
    NotReadyError,
    PeerMismatchError,
    SupersededError,
)
from services.domain.ids import CommandNumber
from services.domain.protocol import Done, SampledToken
from services.worker import worker_links
from services.worker.driver import PeerAddresses, WorkerDriver
from services.worker.engine.compute_thread import ComputeThread
from services.worker.one_rank import OneRank
from tests.builders.channels import patient_channel
from tests.builders.waits import until
from tests.worker.peers_of_worker import PeersOfWorker
from tests.worker.worker_rig import FACTS, JOB, FakeEngine, Rig, assign, entry
from tests.worker.worker_stream import LIMIT_S


@pytest.fixture(autouse=True)
def _attempts_to_connect_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a busy machine keeps waiting would begin another epoch."""
    monkeypatch.setattr(worker_links, "open_channel", patient_channel)


async def test_a_worker_tells_both_peers_what_it_is_under_one_epoch(rig: Rig) -> None:
    scheduler, kv_manager = await rig.next_epoch()
    assert scheduler.epoch == kv_manager.facts.pools.epoch == 7
    assert scheduler.facts.last_epoch == 0
    assert scheduler.facts.model_fingerprint == "abc"
    assert scheduler.facts.profile == FACTS.profile
    assert (kv_manager.facts.pools.device_block_count, kv_manager.facts.pools.host_block_count) == (8, 16)
    scheduler.send_plan(1, entry())
    await scheduler.next_result()
    assert rig.joined == [True]


async def test_plans_run_in_order_on_the_stepping_thread_and_results_come_back(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    for number in (1, 2, 3):
        scheduler.send_plan(number, entry(number))
    results = [await scheduler.next_result() for _ in range(3)]
    assert [one.result.plan_number for one in results] == [1, 2, 3]
    assert results[0].result.tokens == (SampledToken(JOB, 7, False),)
    assert rig.engine.stepping_threads == {"compute"}


async def test_commands_are_applied_and_acknowledged_also_while_an_iteration_runs(rig: Rig) -> None:
    scheduler, kv_manager = await rig.next_epoch()
    rig.engine.go_on.clear()
    scheduler.send_plan(1, entry())
    assert await asyncio.to_thread(rig.engine.started.wait, LIMIT_S)
    kv_manager.send_commands(assign(1), assign(2))
    assert await kv_manager.next_acknowledgements() == ["Applied 1", "Applied 2"]
    rig.engine.on_done(Done(CommandNumber(2)))
    assert await kv_manager.next_acknowledgements() == ["Done 2"]
    assert rig.engine.plans == []


async def test_messages_of_another_epoch_are_dropped(rig: Rig) -> None:
    scheduler, kv_manager = await rig.next_epoch()
    scheduler.send_plan(1, entry(), epoch=99)
    kv_manager.send_commands(assign(1), epoch=99)
    scheduler.send_plan(2, entry())
    kv_manager.send_commands(assign(2))
    assert (await scheduler.next_result()).result.plan_number == 2
    assert await kv_manager.next_acknowledgements() == ["Applied 2"]
    assert [command.command_number for command in rig.engine.commands] == [2]


@pytest.mark.parametrize("lost", ["scheduler", "kv manager"])
async def test_losing_either_peer_begins_a_new_epoch_with_both(rig: Rig, lost: str) -> None:
    scheduler, kv_manager = await rig.next_epoch()
    (scheduler if lost == "scheduler" else kv_manager).close(NotReadyError("shutting down", 0.1))
    async with asyncio.timeout(LIMIT_S):
        await (kv_manager if lost == "scheduler" else scheduler).ended.wait()
    again, kv_again = await rig.next_epoch()
    assert again.facts.last_epoch == scheduler.epoch
    assert again.facts.worker_id == scheduler.facts.worker_id
    assert kv_again.facts.pools.epoch == again.epoch
    assert rig.engine.epochs == [100, 101]
    again.send_plan(1, entry())
    assert (await again.next_result()).result.epoch == again.epoch
    assert rig.joined == [True, False, True]
    assert rig.driver.epochs_begun == 2


async def test_a_stream_that_the_peer_closes_without_an_error_counts_as_lost(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    scheduler.close()
    again, _ = await rig.next_epoch()
    assert again.facts.last_epoch == 7


async def test_an_iteration_under_way_is_finished_and_forgotten_when_the_epoch_ends(rig: Rig) -> None:
    scheduler, kv_manager = await rig.next_epoch()
    rig.engine.go_on.clear()
    scheduler.send_plan(1, entry())
    scheduler.send_plan(2, entry())
    assert await asyncio.to_thread(rig.engine.started.wait, LIMIT_S)
    kv_manager.close()
    async with asyncio.timeout(LIMIT_S):
        await scheduler.ended.wait()
    assert rig.engine.epochs == [100]
    rig.engine.go_on.set()
    again, _ = await rig.next_epoch()
    again.send_plan(1, entry())
    assert (await again.next_result()).result.epoch == again.epoch
    assert [plan.epoch for plan in rig.engine.plans] == [100, 101]


async def test_a_worker_that_is_stopped_does_not_wait_for_a_long_iteration(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    rig.engine.go_on.clear()
    scheduler.send_plan(1, entry())
    assert await asyncio.to_thread(rig.engine.started.wait, LIMIT_S)
    rig.task.cancel()
    async with asyncio.timeout(LIMIT_S / 2):
        await asyncio.gather(rig.task, return_exceptions=True)


async def test_a_plan_that_can_not_be_right_ends_the_epoch_and_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, _ = await rig.next_epoch()
    rig.engine.refuses_plans = True
    scheduler.send_plan(1, entry())
    again, _ = await rig.next_epoch()
    assert again.facts.last_epoch == 7
    assert "a plan that can't be right" in caplog.text


async def test_a_scheduler_whose_messages_are_of_another_version_ends_the_epoch_and_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, _ = await rig.next_epoch()
    scheduler.send(wire.WorkerLinkResponse())
    await rig.next_epoch()
    assert "must be plans" in caplog.text


async def test_a_command_that_can_not_be_right_ends_the_epoch_and_is_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    _, kv_manager = await rig.next_epoch()
    rig.engine.refuses_commands = True
    kv_manager.send_commands(assign(1))
    again, _ = await rig.next_epoch()
    assert again.facts.last_epoch == 7
    assert "a command that can't be right" in caplog.text


async def test_a_worker_that_is_refused_for_good_ends() -> None:
    async with PeersOfWorker() as peers:
        peers.scheduler.refusal = PeerMismatchError("model_fingerprint", "differs")
        await Rig(peers, FakeEngine()).refused(PeerMismatchError)


async def test_a_worker_whose_group_is_taken_asks_again_until_it_is_free(caplog: pytest.LogCaptureFixture) -> None:
    async with PeersOfWorker() as peers:
        peers.scheduler.refusal = GroupTakenError("group 0 has a worker already")
        rig = Rig(peers, FakeEngine())
        await until(lambda: peers.scheduler.refused > 1)
        assert "group 0 has a worker already" in caplog.text
        peers.scheduler.refusal = None
        scheduler, _ = await rig.next_epoch()
        assert scheduler.facts.last_epoch == 0
        rig.task.cancel()


async def test_a_worker_whose_group_stays_taken_ends_with_a_line_that_says_so() -> None:
    async with PeersOfWorker() as peers:
        peers.scheduler.refusal = GroupTakenError("group 0 has a worker already")
        await Rig(peers, FakeEngine(), claim_limit_s=0.2).refused(GroupTakenError)
        assert peers.scheduler.refused > 1


async def test_a_worker_whose_epoch_is_superseded_begins_another(rig: Rig) -> None:
    _, kv_manager = await rig.next_epoch()
    kv_manager.close(SupersededError("a worker with the newer epoch 12 took over"))
    again, _ = await rig.next_epoch()
    assert (again.facts.last_epoch, again.epoch) == (7, 8)


async def test_a_worker_that_is_told_to_end_says_so_and_works_until_it_is_released(rig: Rig) -> None:
    scheduler, kv_manager = await rig.next_epoch()
    draining = asyncio.create_task(rig.driver.drain(LIMIT_S))
    assert (await scheduler.next()).draining.limit_s == LIMIT_S
    scheduler.send_plan(1, entry())
    assert (await scheduler.next_result()).result.plan_number == 1
    assert not draining.done()
    scheduler.send(wire.WorkerLinkResponse(released=wire.WorkerReleased()))
    async with asyncio.timeout(LIMIT_S):
        await draining
    kv_manager.close()
    async with asyncio.timeout(LIMIT_S):
        await scheduler.ended.wait()
    assert rig.driver.epochs_begun == 1


async def test_a_worker_that_is_told_to_end_waits_no_longer_than_its_limit_or_its_epoch(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    await rig.driver.drain(0.05)
    assert not scheduler.ended.is_set()
    draining = asyncio.create_task(rig.driver.drain(LIMIT_S))
    scheduler.close(NotReadyError("shutting down", 0.1))
    async with asyncio.timeout(LIMIT_S):
        await draining


async def test_a_worker_that_finds_nobody_dials_until_somebody_is_there() -> None:
    async with PeersOfWorker() as peers:
        scheduler_address, kv_manager_address = peers.scheduler_address, peers.kv_manager_address
    engine = FakeEngine()
    addresses = PeerAddresses(scheduler_address, kv_manager_address)
    working = WorkerDriver(OneRank(engine, ComputeThread().post), FACTS, addresses, lambda joined: None)
    task = asyncio.create_task(working.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            for _ in range(3):
                await asyncio.to_thread(engine.begun.acquire)
        assert not task.done()
        assert engine.epochs == sorted(set(engine.epochs))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_waiting_for_a_plan_counts_only_while_jobs_are_unfinished(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    await asyncio.to_thread(rig.engine.waits.acquire)
    scheduler.send_plan(1, entry())
    await scheduler.next_result()
    assert rig.engine.plan_wait_s == 0.0
    await asyncio.to_thread(rig.engine.waits.acquire)
    scheduler.send_plan(2, entry())
    await scheduler.next_result()
    assert rig.engine.plan_wait_s > 0.0
