"""A worker's driver between a scheduler and a KV manager that say what the test says. The engine is a fake, the streams
are real.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from services.domain.errors import FastServeError, ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId
from services.domain.iteration import Plan, PlanWork, WorkerCounters, WorkerResult
from services.domain.protocol import Applied, Assign, Done, IterationResult, KvToWorker, SampledToken
from services.domain.worker_facts import WorkerFacts
from services.worker.driver import PeerAddresses, WorkerDriver
from services.worker.engine.compute_thread import ComputeThread
from services.worker.one_rank import OneRank
from tests.builders.cost_profiles import flat_cost
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
        self.told_next: list[Plan | None] = []
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

    def run_first(self, plans: Sequence[Plan], next_plan: Callable[[], Plan | None]) -> list[WorkerResult]:
        if len(self.offered) == self.held_call:
            self.go_on.clear()
            self.is_held.set()
        self.started.set()
        assert self.go_on.wait(LIMIT_S)
        if self.refuses_plans:
            raise ProtocolError("a plan that can't be right")
        self.offered.append([plan.plan_number for plan in plans])
        self.told_next.append(next_plan())
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


def entry(from_token: int = 0) -> PlanWork:
    return PlanWork(JOB, from_token, from_token + 1, (), None, None)


def assign(number: int) -> Assign:
    return Assign(CommandNumber(number), JOB, (BlockId(number),))
