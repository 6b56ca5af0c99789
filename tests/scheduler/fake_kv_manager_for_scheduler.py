"""The KV manager's end of SchedulerLink, over real gRPC: it has room for everybody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.protocol import SchedulerToKv
from services.domain.server_status import KvLinkItem
from services.runtime.server import RpcServer
from services.scheduler.machine.scheduler_events import ToKv
from services.wire.scheduler_kvmanager import kv_batch_to_wire, scheduler_batch_from_wire
from tests.scheduler.machine.fake_kv_answers import FakeKvAnswers


class FakeKvManagerForScheduler(kvmanager_pb2_grpc.KvManagerServiceServicer):
    """Answers as FakeKvAnswers does. `extra` is sent with the next answer."""

    def __init__(self) -> None:
        self.kv = FakeKvAnswers()
        self.extra: list[KvLinkItem] = []
        self.streams = 0
        self._calls: list[Any] = []
        self._writing = asyncio.Lock()
        """gRPC refuses to write twice at a time."""

    @property
    def heard(self) -> list[SchedulerToKv]:
        return self.kv.heard

    async def WorkerLink(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        raise AssertionError("the worker of these tests has no KV")

    async def SchedulerLink(self, requests: AsyncIterator[kv_wire.SchedulerLinkRequest], context: Any) -> None:  # type: ignore[override]
        self.streams += 1
        self._calls.append(context)
        async for request in requests:
            group, epoch, messages = scheduler_batch_from_wire(request)
            answers = self.kv.answers(ToKv(epoch, message) for message in messages)
            items: list[KvLinkItem] = [answer.message for answer in answers]
            items += self.extra
            self.extra = []
            if items:
                async with self._writing:
                    await context.write(kv_batch_to_wire(group, epoch, items))

    async def say(self, message: kv_wire.SchedulerLinkResponse) -> None:
        """To the first scheduler that dialled."""
        async with self._writing:
            await self._calls[0].write(message)

    async def end_first_stream(self) -> None:
        """As a KV manager that is restarted."""
        async with self._writing:
            with suppress(grpc.aio.AbortError):
                await self._calls[0].abort(grpc.StatusCode.UNAVAILABLE, "restarting")


@asynccontextmanager
async def kv_manager() -> AsyncIterator[tuple[FakeKvManagerForScheduler, str]]:
    """A KV manager on loopback, and its address."""
    kv = FakeKvManagerForScheduler()

    def add(server: grpc.aio.Server) -> None:
        kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(kv, server)

    server = RpcServer("127.0.0.1:0", (), add)
    await server.start()
    try:
        yield kv, server.address
    finally:
        await server.stop(0)
