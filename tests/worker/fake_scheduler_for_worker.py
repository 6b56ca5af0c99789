"""The scheduler's end of its WorkerLink, over real gRPC: it does as the test says."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from fastserve.v1 import scheduler_pb2 as wire
from fastserve.v1 import scheduler_pb2_grpc
from services.domain.errors import FastServeError, NotReadyError
from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import PlanWork, WorkerResult
from services.domain.protocol import PlansGivenBack
from services.domain.worker_facts import WorkerFacts
from services.wire.scheduler_worker import given_back_from_wire, plan_to_wire, result_from_wire, worker_facts_from_wire
from tests.worker.worker_stream import LIMIT_S, WorkerStream


class SchedulerStream(WorkerStream):
    """`epoch`: the one that the worker is given."""

    def __init__(self, hello: wire.WorkerHello, epoch: int) -> None:
        super().__init__(hello)
        self.epoch = Epoch(epoch)
        self._unread: deque[WorkerResult] = deque()

    @property
    def facts(self) -> WorkerFacts:
        return worker_facts_from_wire(self.hello)

    def send_plan(self, number: int, *entries: PlanWork, epoch: int | None = None) -> None:
        of = self.epoch if epoch is None else Epoch(epoch)
        self.send(wire.WorkerLinkResponse(plans=wire.Plans(plans=[plan_to_wire(of, PlanNumber(number), entries)])))

    def send_recall(self, first_plan_number: int, epoch: int | None = None) -> None:
        of = self.epoch if epoch is None else Epoch(epoch)
        self.send(wire.WorkerLinkResponse(recall=wire.RecallPlans(epoch=of, first_plan_number=first_plan_number)))

    async def next_given_back(self) -> PlansGivenBack:
        message = await self.next()
        assert message.HasField("given_back"), message
        return given_back_from_wire(message.given_back)

    async def next_result(self) -> WorkerResult:
        if not self._unread:
            self._unread.extend(map(result_from_wire, (await self.next()).results.results))
        return self._unread.popleft()


class FakeSchedulerForWorker(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Streams come out of `streams` as workers dial, of epochs 7, 8, ... `refusal`: what they are told instead."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[SchedulerStream] = asyncio.Queue()
        self.refusal: FastServeError | None = None
        self.refused = 0
        self._next_epoch = 7

    async def WorkerLink(
        self, request_iterator: AsyncIterator[wire.WorkerLinkRequest], context: Any
    ) -> AsyncIterator[wire.WorkerLinkResponse]:
        hello = (await anext(request_iterator)).hello
        if self.refusal is not None:
            self.refused += 1
            raise self.refusal
        stream = SchedulerStream(hello, self._next_epoch)
        self._next_epoch += 1
        self.streams.put_nowait(stream)
        welcome = wire.WorkerLinkResponse(welcome=wire.WorkerWelcome(epoch=stream.epoch))
        async for message in stream.serve(request_iterator, welcome):
            yield message

    def GatewayLink(self, request_iterator: object, context: object) -> AsyncIterator[wire.GatewayLinkResponse]:
        raise NotReadyError("no gateways here")

    async def next(self) -> SchedulerStream:
        async with asyncio.timeout(LIMIT_S):
            return await self.streams.get()
