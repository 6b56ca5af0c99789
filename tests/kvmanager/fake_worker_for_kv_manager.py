"""The worker's end of the KV manager's WorkerLink, over real gRPC: it takes commands one by one."""

import asyncio
from typing import Any

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.ids import CommandNumber, Epoch
from services.domain.protocol import (
    Applied,
    Done,
    KvToWorker,
    Offload,
    Upload,
    WorkerPools,
)
from services.domain.worker_facts import KvWorkerFacts
from services.wire.kvmanager_worker import acknowledgements_to_wire, commands_from_wire, kv_hello_to_wire
from tests.builders.stream_ends import status_at_end
from tests.builders.waits import LIMIT_S


class FakeWorkerForKvManager:
    """A worker's stream."""

    def __init__(self, channel: grpc.aio.Channel, epoch: int) -> None:
        self._call: Any = kvmanager_pb2_grpc.KvManagerServiceStub(channel).WorkerLink()
        self.epoch = Epoch(epoch)
        self._waiting: list[KvToWorker] = []

    async def join(self, **changes: int) -> None:
        """Hello: four device and eight host blocks of a token."""
        facts = {"block_size": 1, "device_block_count": 4, "host_block_count": 8}
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
        answers: list[Applied | Done] = [Applied(CommandNumber(command.command_number))]
        if isinstance(command, Offload | Upload):
            answers.append(Done(command.command_number))
        await self._call.write(acknowledgements_to_wire(self.epoch, answers))
        return command

    async def acknowledge(self, number: int) -> None:
        """Applied."""
        await self._call.write(acknowledgements_to_wire(self.epoch, [Applied(CommandNumber(number))]))

    async def end(self) -> grpc.StatusCode:
        """How the stream ends."""
        return await status_at_end(self._call)

    def hang_up(self) -> None:
        """Cut the stream."""
        self._call.cancel()
