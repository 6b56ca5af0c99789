"""The RPCs of the scheduler: thin handlers that put what they read into the driver's inbox, and write what waits in
their peer's outbox.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import InvalidFieldError, ProtocolError
from services.runtime.gateway_link.convert import cancel_from_wire, submission_from_wire, updates_to_wire
from services.runtime.scheduler_link.convert import (
    limits_to_wire,
    plan_to_wire,
    result_from_wire,
    worker_facts_from_wire,
)
from services.runtime.streams import first_message, until_one_ends
from services.scheduler.convert import check_interval, report_to_wire
from services.scheduler.driver import Driver
from services.scheduler.messages import (
    Cancelled,
    GatewayJoined,
    GatewayLeft,
    Submitted,
    WorkerArrived,
    WorkerLeft,
    WorkerSaid,
)
from services.scheduler.peers import GatewayPeer, WorkerPeer

SCHEDULER_SERVICE = wire.DESCRIPTOR.services_by_name["SchedulerService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name

MOST_GATEWAY_ID = 128


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """The streams of gateways and workers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def GatewayLink(self, requests: AsyncIterator[wire.GatewayLinkRequest], context: Any) -> None:  # type: ignore[override]
        hello = (await first_message(requests)).hello
        if not 0 < len(hello.gateway_id) <= MOST_GATEWAY_ID:
            raise InvalidFieldError("hello.gateway_id", f"must have 1 to {MOST_GATEWAY_ID} characters")
        self._driver.check_gateway(hello.model_fingerprint)
        peer = GatewayPeer(hello.gateway_id)
        welcome = wire.SchedulerWelcome(limits=limits_to_wire(self._driver.limits))
        self._driver.post(GatewayJoined(peer))
        try:
            await context.write(wire.GatewayLinkResponse(welcome=welcome))
            await until_one_ends(
                self._read_gateway(peer, requests), self._write_gateway(peer, context.write), peer.until_closed()
            )
        finally:
            self._driver.post(GatewayLeft(peer))

    async def _read_gateway(self, peer: GatewayPeer, requests: AsyncIterator[wire.GatewayLinkRequest]) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "submit":
                    await self._driver.put(Submitted(peer, submission_from_wire(request.submit)))
                case "cancel":
                    await self._driver.put(Cancelled(peer, *cancel_from_wire(request.cancel)))
                case _:
                    raise ProtocolError("a gateway's message is neither submit nor cancel")

    async def _write_gateway(
        self, peer: GatewayPeer, write: Callable[[wire.GatewayLinkResponse], Awaitable[None]]
    ) -> None:
        while True:
            await peer.wait()
            limits = peer.take_limits()
            if limits is not None:
                await write(wire.GatewayLinkResponse(limits=limits_to_wire(limits)))
            updates = peer.take_updates(self._driver.book)
            if updates:
                await write(wire.GatewayLinkResponse(updates=updates_to_wire(updates)))

    async def WorkerLink(self, requests: AsyncIterator[wire.WorkerLinkRequest], context: Any) -> None:  # type: ignore[override]
        first = await first_message(requests)
        if first.WhichOneof("message") != "hello":
            raise InvalidFieldError("hello", "must be the first message of the stream")
        facts = worker_facts_from_wire(first.hello)
        self._driver.check_worker(facts)
        peer = WorkerPeer(facts.epoch)
        self._driver.post(WorkerArrived(peer, facts))
        try:
            await context.write(wire.WorkerLinkResponse(welcome=wire.WorkerWelcome()))
            await until_one_ends(
                self._read_worker(peer, requests), self._write_worker(peer, context.write), peer.until_closed()
            )
        finally:
            self._driver.post(WorkerLeft(peer))

    async def _read_worker(self, peer: WorkerPeer, requests: AsyncIterator[wire.WorkerLinkRequest]) -> None:
        async for request in requests:
            if request.WhichOneof("message") != "result":
                raise ProtocolError("a worker's message is no result")
            self._driver.post(WorkerSaid(peer, result_from_wire(request.result)))

    async def _write_worker(
        self, peer: WorkerPeer, write: Callable[[wire.WorkerLinkResponse], Awaitable[None]]
    ) -> None:
        while True:
            await peer.wait()
            for plan, work in peer.take_plans():
                await write(wire.WorkerLinkResponse(plan=plan_to_wire(peer.epoch, plan, work)))


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Snapshots of the server."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        return admin_pb2.GetStatusResponse(status=report_to_wire(self._driver.report()))

    async def WatchStatus(self, request: admin_pb2.WatchStatusRequest, context: Any) -> None:  # type: ignore[override]
        # Writes to the context instead of yielding: without a generator the call is cancelled where it waits.
        interval_s = check_interval(request)
        while True:
            await context.write(admin_pb2.WatchStatusResponse(status=report_to_wire(self._driver.report())))
            await asyncio.sleep(interval_s)


def register(server: grpc.aio.Server, driver: Driver) -> None:
    """Adds both services to a server."""
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerService(driver), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(driver), server)
