"""A scheduler and a KV manager that speak gRPC and do as the test says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import kvmanager_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import FastServeError, NotReadyError
from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import PlanWork, WorkerResult
from services.domain.protocol import KvToWorker
from services.domain.worker_facts import KvWorkerFacts, WorkerFacts
from services.runtime.server import RpcServer
from services.wire.kvmanager_worker import acknowledgements_from_wire, commands_to_wire, kv_hello_from_wire
from services.wire.scheduler_worker import plan_to_wire, result_from_wire, worker_facts_from_wire

LIMIT_S = 60.0


class Stream:
    """One stream of a worker: what it said first, what it said since, what to tell it."""

    def __init__(self, hello: Any) -> None:
        self.hello = hello
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def next(self) -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await self.received.get()

    def send(self, message: Any) -> None:
        self.outgoing.put_nowait(message)

    def close(self, error: FastServeError | None = None) -> None:
        """Ends the stream, with OK or with the error's status."""
        self.outgoing.put_nowait(error)

    async def serve(self, requests: AsyncIterator[Any], first: Any | None) -> AsyncIterator[Any]:
        async def read() -> None:
            try:
                async for request in requests:
                    self.received.put_nowait(request)
            finally:
                self.ended.set()

        reader = asyncio.create_task(read())
        try:
            if first is not None:
                yield first
            while (message := await self.outgoing.get()) is not None:
                if isinstance(message, FastServeError):
                    raise message
                yield message
        finally:
            self.ended.set()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


class SchedulerStream(Stream):
    @property
    def facts(self) -> WorkerFacts:
        return worker_facts_from_wire(self.hello)

    def send_plan(self, number: int, *entries: PlanWork, epoch: int | None = None) -> None:
        of = self.facts.epoch if epoch is None else Epoch(epoch)
        self.send(wire.WorkerLinkResponse(plan=plan_to_wire(of, PlanNumber(number), entries)))

    async def next_result(self) -> WorkerResult:
        return result_from_wire((await self.next()).result)


class KvStream(Stream):
    @property
    def facts(self) -> KvWorkerFacts:
        return kv_hello_from_wire(self.hello)

    def send_commands(self, *commands: KvToWorker, epoch: int | None = None) -> None:
        of = self.facts.pools.epoch if epoch is None else Epoch(epoch)
        self.send(commands_to_wire(of, commands))

    async def next_acknowledgements(self) -> list[str]:
        """As "Applied 1", "Done 1": the two are tuples, which are equal to each other."""
        return [
            f"{type(one).__name__} {one.command_number}" for one in acknowledgements_from_wire(await self.next(), 0)[1]
        ]


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Streams come out of `streams` as workers dial. `refusal`: what they are told instead."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[SchedulerStream] = asyncio.Queue()
        self.refusal: FastServeError | None = None

    async def WorkerLink(
        self, request_iterator: AsyncIterator[wire.WorkerLinkRequest], context: Any
    ) -> AsyncIterator[wire.WorkerLinkResponse]:
        stream = SchedulerStream((await anext(request_iterator)).hello)
        if self.refusal is not None:
            raise self.refusal
        self.streams.put_nowait(stream)
        welcome = wire.WorkerLinkResponse(welcome=wire.WorkerWelcome())
        async for message in stream.serve(request_iterator, welcome):
            yield message

    def GatewayLink(self, request_iterator: object, context: object) -> AsyncIterator[wire.GatewayLinkResponse]:
        raise NotReadyError("no gateways here")

    async def next(self) -> SchedulerStream:
        async with asyncio.timeout(LIMIT_S):
            return await self.streams.get()


class FakeKvManager(kvmanager_pb2_grpc.KvManagerServiceServicer):
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


class Peers:
    """Both, on free ports."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.kv_manager = FakeKvManager()
        self._servers = (
            RpcServer("127.0.0.1:0", (), self._add_scheduler),
            RpcServer("127.0.0.1:0", (), self._add_kv_manager),
        )

    def _add_scheduler(self, server: grpc.aio.Server) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.scheduler, server)

    def _add_kv_manager(self, server: grpc.aio.Server) -> None:
        kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(self.kv_manager, server)

    @property
    def scheduler_address(self) -> str:
        return self._servers[0].address

    @property
    def kv_manager_address(self) -> str:
        return self._servers[1].address

    async def __aenter__(self) -> "Peers":
        for server in self._servers:
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.stop(0)
