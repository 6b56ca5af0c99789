"""The KV manager's shell on loopback, and peers of a few lines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Applied,
    Arrive,
    ArrivedJob,
    Done,
    Finished,
    Jobs,
    KvToWorker,
    Offload,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    Release,
    SchedulerToKv,
    Upload,
    WorkerPools,
)
from services.domain.server_status import KvLinkItem, PoolStatus
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.driver import KvManagerDriver
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.kvmanager.service import KV_MANAGER_SERVICE, register
from services.runtime.channel import open_channel
from services.runtime.server import RpcServer
from services.wire.kvmanager_worker import acknowledgements_to_wire, commands_from_wire, kv_hello_to_wire
from services.wire.scheduler_kvmanager import kv_batch_from_wire, scheduler_batch_to_wire

LIMIT_S = 10.0


class FakeScheduler:
    """The scheduler's stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call: Any = kvmanager_pb2_grpc.KvManagerServiceStub(channel).SchedulerLink()
        self.pools: list[PoolStatus] = []
        self._arrivals = 0
        self._heard: list[KvLinkItem] = []

    async def say(self, epoch: int, *messages: SchedulerToKv) -> None:
        """One turn."""
        await self._call.write(scheduler_batch_to_wire(Epoch(epoch), messages))

    async def jobs(self, epoch: int, *names: str) -> None:
        """Jobs of two tokens, four at most."""
        jobs = tuple(ArrivedJob(JobId(name), 2, 4) for name in names)
        order = tuple(OrderChange(JobId(name), Rank(0, float(at), at)) for at, name in enumerate(names))
        await self.say(epoch, Jobs(Epoch(epoch), jobs, order, 4, (), None))

    async def arrive(self, epoch: int, name: str, key: float) -> None:
        """A job of two tokens, four at most."""
        self._arrivals += 1
        order = Order((OrderChange(JobId(name), Rank(0, key, 100 + self._arrivals)),))
        await self.say(epoch, Arrive(ArrivedJob(JobId(name), 2, 4)), order)

    async def run(self, epoch: int, plan: int, name: str, start: int, stop: int) -> None:
        """A plan and its result."""
        entries = (PlanEntry(JobId(name), start, stop),)
        await self.say(epoch, Planned(PlanNumber(plan), entries), Finished(PlanNumber(plan)))

    async def consent(self, epoch: int, name: str) -> None:
        """To a reclaim."""
        await self.say(epoch, Ack(JobId(name)))

    async def release(self, epoch: int, name: str) -> None:
        """A job ended."""
        await self.say(epoch, Release(JobId(name)))

    async def hear(self) -> KvLinkItem:
        """The next message that is no figures."""
        while not self._heard:
            for item in await self._next():
                if isinstance(item, PoolStatus):
                    self.pools.append(item)
                else:
                    self._heard.append(item)
        return self._heard.pop(0)

    async def hear_pools(self) -> PoolStatus:
        """The next figures; messages beside them are kept."""
        count = len(self.pools)
        while len(self.pools) == count:
            for item in await self._next():
                if isinstance(item, PoolStatus):
                    self.pools.append(item)
                else:
                    self._heard.append(item)
        return self.pools[count]

    async def _next(self) -> tuple[KvLinkItem, ...]:
        async with asyncio.timeout(LIMIT_S):
            batch = await self._call.read()
        assert isinstance(batch, wire.SchedulerLinkResponse), await self.end()
        return kv_batch_from_wire(batch)[1]

    async def end(self) -> grpc.StatusCode:
        """How the stream ends; what still comes before is dropped."""
        return await end_of(self._call)

    def hang_up(self) -> None:
        """Cut the stream."""
        self._call.cancel()


class FakeWorker:
    """A worker's stream."""

    def __init__(self, channel: grpc.aio.Channel, epoch: int) -> None:
        self._call: Any = kvmanager_pb2_grpc.KvManagerServiceStub(channel).WorkerLink()
        self.epoch = Epoch(epoch)
        self._waiting: list[KvToWorker] = []

    async def join(self, **changes: int) -> None:
        """Hello: four device and eight host blocks of a token."""
        facts = {"block_size": 1, "device_block_count": 4, "host_block_count": 8, "stage": 0, "stage_count": 1}
        group = changes.pop("group", 0)
        pools = WorkerPools(epoch=self.epoch, **{**facts, **changes})
        await self._call.write(kv_hello_to_wire(KvWorkerFacts(group, pools, 64)))

    async def write(self, message: wire.KvManagerServiceWorkerLinkRequest) -> None:
        """Anything."""
        await self._call.write(message)

    async def take(self) -> KvToWorker:
        """The next command."""
        while not self._waiting:
            async with asyncio.timeout(LIMIT_S):
                batch = await self._call.read()
            assert isinstance(batch, wire.KvManagerServiceWorkerLinkResponse), await self.end()
            self._waiting += commands_from_wire(batch)[1]
        return self._waiting.pop(0)

    async def obey(self) -> KvToWorker:
        """The next command, applied and done at once."""
        command = await self.take()
        answers: list[Applied | Done] = [Applied(CommandNumber(command.command_number), 0)]
        if isinstance(command, Offload | Upload):
            answers.append(Done(command.command_number, 0))
        await self._call.write(acknowledgements_to_wire(self.epoch, answers))
        return command

    async def acknowledge(self, number: int) -> None:
        """Applied."""
        await self._call.write(acknowledgements_to_wire(self.epoch, [Applied(CommandNumber(number), 0)]))

    async def end(self) -> grpc.StatusCode:
        """How the stream ends."""
        return await end_of(self._call)

    def hang_up(self) -> None:
        """Cut the stream."""
        self._call.cancel()


async def end_of(call: Any) -> grpc.StatusCode:
    """The status that a stream ends with."""
    async with asyncio.timeout(LIMIT_S):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await call.code()
        return code


class Running:
    """A KV manager that serves."""

    def __init__(self, driver: KvManagerDriver, channel: grpc.aio.Channel) -> None:
        self.driver = driver
        self.channel = channel

    def scheduler(self) -> FakeScheduler:
        """A scheduler dials."""
        return FakeScheduler(self.channel)

    async def worker(self, epoch: int, **changes: int) -> FakeWorker:
        """A worker joins."""
        worker = FakeWorker(self.channel, epoch)
        await worker.join(**changes)
        return worker


@asynccontextmanager
async def running(policy: str = "reactive") -> AsyncIterator[Running]:
    """A KV manager on a free port."""
    driver = KvManagerDriver(KvConfig(kv_policy_named(policy), lookahead_tokens=0, grant_blocks=1))
    server = RpcServer("127.0.0.1:0", (KV_MANAGER_SERVICE,), lambda grpc_server: register(grpc_server, driver))
    await server.start()
    await server.set_ready(True)
    turns = asyncio.create_task(driver.run())
    try:
        async with open_channel(server.address) as channel:
            yield Running(driver, channel)
    finally:
        await server.stop(0)
        turns.cancel()
        [ended] = await asyncio.gather(turns, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
