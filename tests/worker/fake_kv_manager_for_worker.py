"""The KV manager's end of its WorkerLink, over real gRPC: it does as the test says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.errors import NotReadyError
from services.domain.ids import Epoch
from services.domain.protocol import KvToWorker
from services.domain.worker_facts import KvWorkerFacts
from services.wire.kvmanager_worker import acknowledgements_from_wire, commands_to_wire, kv_hello_from_wire
from tests.worker.worker_stream import LIMIT_S, WorkerStream


class KvStream(WorkerStream):
    @property
    def facts(self) -> KvWorkerFacts:
        return kv_hello_from_wire(self.hello)

    def send_commands(self, *commands: KvToWorker, epoch: int | None = None) -> None:
        of = self.facts.pools.epoch if epoch is None else Epoch(epoch)
        self.send(commands_to_wire(of, commands))

    async def next_acknowledgements(self) -> list[str]:
        """As "Applied 1", "Done 1": the two are tuples, which are equal to each other."""
        return [
            f"{type(one).__name__} {one.command_number}" for one in acknowledgements_from_wire(await self.next())[1]
        ]


class FakeKvManagerForWorker(kvmanager_pb2_grpc.KvManagerServiceServicer):
    """Streams come out of `streams` as workers dial."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[KvStream] = asyncio.Queue()

    async def WorkerLink(
        self, request_iterator: AsyncIterator[kv_wire.KvManagerServiceWorkerLinkRequest], context: Any
    ) -> AsyncIterator[kv_wire.KvManagerServiceWorkerLinkResponse]:
        stream = KvStream(await anext(request_iterator))
        self.streams.put_nowait(stream)
        async for message in stream.serve(request_iterator, None):
            yield message

    def SchedulerLink(self, request_iterator: object, context: object) -> AsyncIterator[kv_wire.SchedulerLinkResponse]:
        raise NotReadyError("no schedulers here")

    async def next(self) -> KvStream:
        async with asyncio.timeout(LIMIT_S):
            return await self.streams.get()
