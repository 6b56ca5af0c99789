"""The scheduler's end of SchedulerLink, over real gRPC: it says what the test says."""

import asyncio
from typing import Any

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Finished,
    Jobs,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    Release,
    SchedulerToKv,
)
from services.domain.server_status import KvLinkItem, PoolStatus
from services.runtime.terms import NO_TERM, term_metadata
from services.wire.scheduler_kvmanager import kv_batch_from_wire, scheduler_batch_to_wire
from tests.builders.stream_ends import status_at_end
from tests.builders.waits import LIMIT_S
from tests.kvmanager.machine.checked_kv_manager import STAY


class FakeSchedulerForKvManager:
    """The scheduler's stream; it speaks of `group`, and hears of all."""

    def __init__(self, channel: grpc.aio.Channel, term: int = NO_TERM) -> None:
        self.group = 0
        stub = kvmanager_pb2_grpc.KvManagerServiceStub(channel)
        self._call: Any = stub.SchedulerLink(metadata=term_metadata(term))
        self.pools: list[PoolStatus] = []
        self.newest_epoch = 0
        """As the KV manager told it first."""
        self._arrivals = 0
        self._heard: list[KvLinkItem] = []

    async def say(self, epoch: int, *messages: SchedulerToKv) -> None:
        """One turn."""
        await self.write(scheduler_batch_to_wire(self.group, Epoch(epoch), messages))

    async def write(self, message: wire.SchedulerLinkRequest) -> None:
        """Anything."""
        await self._call.write(message)

    async def jobs(self, epoch: int, *names: str) -> None:
        """Jobs of two tokens, four at most."""
        jobs = tuple(ArrivedJob(JobId(name), 2, 4, STAY) for name in names)
        order = tuple(OrderChange(JobId(name), Rank(0, float(at), at)) for at, name in enumerate(names))
        await self.say(epoch, Jobs(Epoch(epoch), jobs, order, 4, (), None))

    async def arrive(self, epoch: int, name: str, key: float) -> None:
        """A job of two tokens, four at most."""
        self._arrivals += 1
        order = Order((OrderChange(JobId(name), Rank(0, key, 100 + self._arrivals)),))
        await self.say(epoch, Arrive(ArrivedJob(JobId(name), 2, 4, STAY)), order)

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

    async def hear_newest_epoch(self) -> int:
        """What it is told before all else, if the KV manager knows of an epoch."""
        await self._read()
        return self.newest_epoch

    async def hear(self) -> KvLinkItem:
        """The next message that is no figures."""
        while not self._heard:
            await self._read()
        return self._heard.pop(0)

    async def hear_pools(self) -> PoolStatus:
        """The next figures; messages beside them are kept."""
        count = len(self.pools)
        while len(self.pools) == count:
            await self._read()
        return self.pools[count]

    async def _read(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            batch = await self._call.read()
        assert isinstance(batch, wire.SchedulerLinkResponse), await self.end()
        self.newest_epoch = self.newest_epoch or batch.newest_epoch
        for item in kv_batch_from_wire(batch)[2]:
            if isinstance(item, PoolStatus):
                self.pools.append(item)
            else:
                self._heard.append(item)

    async def end(self) -> grpc.StatusCode:
        """How the stream ends; what still comes before is dropped."""
        return await status_at_end(self._call)

    def hang_up(self) -> None:
        """Cut the stream."""
        self._call.cancel()
