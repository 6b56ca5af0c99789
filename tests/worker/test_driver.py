"""The worker's epochs: joining, working, losing a peer, being refused. The engine here is a fake; the streams are
real.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import (
    FastServeError,
    GroupTakenError,
    NotReadyError,
    PeerMismatchError,
    ProtocolError,
    SupersededError,
)
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId
from services.domain.iteration import Plan, PlanWork, WorkerCounters, WorkerResult
from services.domain.protocol import Applied, Assign, Done, IterationResult, KvToWorker, SampledToken
from services.domain.worker_facts import WorkerFacts
from services.worker import worker_links
from services.worker.driver import PeerAddresses, WorkerDriver
from services.worker.engine.compute_thread import ComputeThread
from services.worker.one_rank import OneRank
from tests.builders.channels import patient_channel
from tests.builders.cost_profiles import flat_cost
from tests.builders.waits import until
from tests.worker.fake_kv_manager_for_worker import KvStream
from tests.worker.fake_scheduler_for_worker import SchedulerStream
from tests.worker.peers_of_worker import PeersOfWorker
from tests.worker.worker_stream import LIMIT_S

FACTS = WorkerFacts(
    last_epoch=Epoch(0),
    group=0,
    model_fingerprint="abc",
    block_size=4,
    device_blocks=8,
    host_blocks=16,
    max_model_len=64,
    block_bytes=1024,
    profile=flat_cost(0.1),
    device="cpu",
)
JOB = JobId("a/0")


class FakeEngine:
    """Answers every entry with token 7. Plans wait until `go_on`, as does the call number `held_call`, from 0."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.plans: list[Plan] = []
        self.commands: list[KvToWorker] = []
        self.on_done: Callable[[Done], None] = lambda done: None
        self.go_on = threading.Event()
        self.go_on.set()
        self.started = threading.Event()
        self.begun = threading.Semaphore(0)
        self.held_call: int | None = None
        self.is_held = threading.Event()
        self.refuses_plans = False
        self.offered: list[list[int]] = []
        self.seen_plans = threading.Semaphore(0)
        self.refuses_commands = False
        self.plan_wait_s = 0.0
        self.waits = threading.Semaphore(0)
        self.stepping_threads: set[str] = set()

    def prepare_thread(self) -> None:
        self.stepping_threads.add(threading.current_thread().name)

    def begin_epoch(self, epoch: Epoch, on_done: Callable[[Done], None]) -> None:
        self.epochs.append(epoch)
        self.begun.release()
        self.on_done = on_done

    def apply(self, command: KvToWorker) -> Applied:
        if self.refuses_commands:
            raise ProtocolError("a command that can't be right")
        self.commands.append(command)
        return Applied(command.command_number)

    def prepare_guides(self, plan: Plan) -> None:
        self.seen_plans.release()

    def run_first(self, plans: Sequence[Plan]) -> list[WorkerResult]:
        if len(self.offered) == self.held_call:
            self.go_on.clear()
            self.is_held.set()
        self.started.set()
        assert self.go_on.wait(LIMIT_S)
        if self.refuses_plans:
            raise ProtocolError("a plan that can't be right")
        self.offered.append([plan.plan_number for plan in plans])
        self.plans += plans
        self.stepping_threads.add(threading.current_thread().name)
        return [self._result(plan) for plan in plans]

    def _result(self, plan: Plan) -> WorkerResult:
        tokens = tuple(SampledToken(entry.job_id, 7, False) for entry in plan.entries)
        result = IterationResult(plan.epoch, plan.plan_number, tokens, (), 0.001)
        return WorkerResult(result, {}, WorkerCounters(busy_s=0.001))

    def has_unfinished_jobs(self) -> bool:
        self.waits.release()  # asked before a wait
        return bool(self.plans)

    def add_plan_wait(self, seconds: float) -> None:
        self.plan_wait_s += seconds

    def give_up(self) -> None:
        self.go_on.set()


class Rig:
    def __init__(self, peers: PeersOfWorker, engine: FakeEngine, claim_limit_s: float = LIMIT_S) -> None:
        self.peers = peers
        self.engine = engine
        self.joined: list[bool] = []
        self.driver = WorkerDriver(
            OneRank(engine, ComputeThread().post),
            FACTS,
            PeerAddresses(peers.scheduler_address, peers.kv_manager_address),
            self.joined.append,
            claim_limit_s,
            lambda: 100,
        )
        self.task = asyncio.create_task(self.driver.run())

    async def next_epoch(self) -> tuple[SchedulerStream, KvStream]:
        return await self.peers.scheduler.next(), await self.peers.kv_manager.next()

    async def refused(self, kind: type[FastServeError]) -> None:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(kind):
                await self.task


@pytest.fixture(autouse=True)
def _attempts_to_connect_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a busy machine keeps waiting would begin another epoch."""
    monkeypatch.setattr(worker_links, "open_channel", patient_channel)


@asynccontextmanager
async def rig_of(engine: FakeEngine) -> AsyncIterator[Rig]:
    async with PeersOfWorker() as peers:
        rig = Rig(peers, engine)
        try:
            yield rig
        finally:
            engine.go_on.set()
            rig.task.cancel()
            await asyncio.gather(rig.task, return_exceptions=True)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rig_of(FakeEngine()) as made:
        yield made


def entry(from_token: int = 0) -> PlanWork:
    return PlanWork(JOB, from_token, from_token + 1, (), None, None)


def assign(number: int) -> Assign:
    return Assign(CommandNumber(number), JOB, (BlockId(number),))


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


async def test_half_of_the_plans_at_hand_are_offered_to_one_call_and_each_is_run_once(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    engine = rig.engine
    engine.go_on.clear()
    scheduler.send_plan(1, entry())
    assert await asyncio.to_thread(engine.started.wait, LIMIT_S)
    for number in range(2, 11):
        scheduler.send_plan(number, entry())
    for _ in range(10):
        assert await asyncio.to_thread(engine.seen_plans.acquire, timeout=LIMIT_S)
    engine.go_on.set()
    results = [await scheduler.next_result() for _ in range(10)]
    assert [one.result.plan_number for one in results] == list(range(1, 11))
    assert [plan.plan_number for plan in engine.plans] == list(range(1, 11))
    assert engine.offered[1] == [2, 3, 4, 5], "one result waits, and eight plans are behind the second"


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


async def test_plans_that_are_not_begun_are_given_back(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    rig.engine.go_on.clear()
    for number in range(1, 6):
        scheduler.send_plan(number, entry())
    await asyncio.to_thread(rig.engine.started.wait, LIMIT_S)
    scheduler.send_recall(1)
    assert await scheduler.next_given_back() == (scheduler.epoch, 2), "the first is being run"
    scheduler.send_plan(6, entry())
    rig.engine.go_on.set()
    assert [(await scheduler.next_result()).result.plan_number for _ in range(2)] == [1, 6]


async def test_no_more_plans_are_given_back_than_were_recalled(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    rig.engine.go_on.clear()
    for number in range(1, 6):
        scheduler.send_plan(number, entry())
    await asyncio.to_thread(rig.engine.started.wait, LIMIT_S)
    scheduler.send_recall(5)
    assert await scheduler.next_given_back() == (scheduler.epoch, 5)
    rig.engine.go_on.set()
    assert [(await scheduler.next_result()).result.plan_number for _ in range(4)] == [1, 2, 3, 4]


async def test_plans_that_are_run_in_one_call_are_begun(rig: Rig) -> None:
    scheduler, _ = await rig.next_epoch()
    rig.engine.go_on.clear()
    for number in range(1, 11):
        scheduler.send_plan(number, entry())
    for _ in range(10):
        assert await asyncio.to_thread(rig.engine.seen_plans.acquire, timeout=LIMIT_S)
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
