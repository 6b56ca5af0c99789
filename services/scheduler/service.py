"""The RPCs of the scheduler: thin handlers that post what they read to the driver's inbox and write what is waiting in
their peer's outbox.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import InvalidFieldError, ProtocolError
from services.domain.prompt_logprobs import ScoredPrompt
from services.runtime.served_streams import first_message, until_one_ends
from services.runtime.terms import NO_TERM, term_metadata
from services.scheduler.driver import SchedulerDriver
from services.scheduler.machine.scheduler_events import RecallPlans
from services.scheduler.outgoing_streams import GatewayStream, WorkerStream
from services.scheduler.scheduler_inbox import (
    Cancelled,
    GatewayJoined,
    GatewayLeft,
    Submitted,
    WorkerDrains,
    WorkerGaveBack,
    WorkerSaid,
)
from services.wire.gateway_scheduler import cancel_from_wire, limits_to_wire, submission_from_wire, updates_to_wire
from services.wire.operator_scheduler import interval_from_wire, max_jobs_from_wire, status_to_wire
from services.wire.scheduler_worker import (
    draining_from_wire,
    given_back_from_wire,
    plans_to_wire,
    result_from_wire,
    scored_from_wire,
    worker_facts_from_wire,
)

SCHEDULER_SERVICE = wire.DESCRIPTOR.services_by_name["SchedulerService"].full_name
ADMIN_SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name

MOST_GATEWAY_ID = 128
MOST_SCORED = 10_000
"""Parts of prompts that a worker scores in an iteration."""


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """The streams of gateways and workers."""

    def __init__(self, driver: SchedulerDriver) -> None:
        self._driver = driver

    async def GatewayLink(self, requests: AsyncIterator[wire.GatewayLinkRequest], context: Any) -> None:  # type: ignore[override]
        hello = (await first_message(requests)).hello
        if not 0 < len(hello.gateway_id) <= MOST_GATEWAY_ID:
            raise InvalidFieldError("hello.gateway_id", f"must have 1 to {MOST_GATEWAY_ID} characters")
        self._driver.check_gateway(hello.model_fingerprint)
        peer = GatewayStream(hello.gateway_id)
        welcome = wire.SchedulerWelcome(limits=limits_to_wire(self._driver.limits))
        self._driver.inbox.post(GatewayJoined(peer))
        try:
            await context.send_initial_metadata(term_metadata(self._driver.term or NO_TERM))
            await context.write(wire.GatewayLinkResponse(welcome=welcome))
            await until_one_ends(
                self._read_gateway(peer, requests), self._write_gateway(peer, context.write), peer.until_closed()
            )
        finally:
            self._driver.inbox.post(GatewayLeft(peer))

    async def _read_gateway(self, peer: GatewayStream, requests: AsyncIterator[wire.GatewayLinkRequest]) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "submit":
                    await self._driver.inbox.put(Submitted(peer, submission_from_wire(request.submit)))
                case "cancel":
                    await self._driver.inbox.put(Cancelled(peer, *cancel_from_wire(request.cancel)))
                case _:
                    raise ProtocolError("a gateway's message must be a submit or a cancel")

    async def _write_gateway(
        self, peer: GatewayStream, write: Callable[[wire.GatewayLinkResponse], Awaitable[None]]
    ) -> None:
        while True:
            await peer.wait()
            limits = peer.take_limits()
            if limits is not None:
                await write(wire.GatewayLinkResponse(limits=limits_to_wire(limits)))
            updates = peer.take_updates(self._driver.jobs)
            if updates:
                await write(wire.GatewayLinkResponse(updates=updates_to_wire(updates)))

    async def WorkerLink(self, requests: AsyncIterator[wire.WorkerLinkRequest], context: Any) -> None:  # type: ignore[override]
        first = await first_message(requests)
        if first.WhichOneof("message") != "hello":
            raise InvalidFieldError("hello", "must be the first message of the stream")
        peer = self._driver.admit_worker(worker_facts_from_wire(first.hello))
        try:
            await context.send_initial_metadata(term_metadata(self._driver.term or NO_TERM))
            await context.write(wire.WorkerLinkResponse(welcome=wire.WorkerWelcome(epoch=peer.epoch)))
            await until_one_ends(
                self._read_worker(peer, requests), self._write_worker(peer, context.write), peer.until_closed()
            )
        finally:
            self._driver.worker_left(peer)

    async def _read_worker(self, peer: WorkerStream, requests: AsyncIterator[wire.WorkerLinkRequest]) -> None:
        scored: list[ScoredPrompt] = []
        async for request in requests:
            match request.WhichOneof("message"):
                case "results":
                    for result in map(result_from_wire, request.results.results):
                        self._driver.inbox.post(WorkerSaid(peer, replace(result, scored=tuple(scored))))
                        scored = []
                case "scored" if len(scored) < MOST_SCORED:
                    scored.append(scored_from_wire(request.scored))
                case "given_back":
                    self._driver.inbox.post(WorkerGaveBack(peer, given_back_from_wire(request.given_back)))
                case "draining":
                    self._driver.inbox.post(WorkerDrains(peer, draining_from_wire(request.draining).limit_s))
                case _:
                    raise ProtocolError(
                        f"a worker's message must be a result, at most {MOST_SCORED} parts of prompts before one, "
                        "plans that it gives back, or that it is draining"
                    )

    async def _write_worker(
        self, peer: WorkerStream, write: Callable[[wire.WorkerLinkResponse], Awaitable[None]]
    ) -> None:
        while True:
            waiting = await peer.take()
            made = [one for one in waiting if one is not None and not isinstance(one, RecallPlans)]
            for plans in plans_to_wire(peer.epoch, made):
                await write(wire.WorkerLinkResponse(plans=plans))
            # No plan is made before its answer, so it comes behind all that wait with it.
            for recall in (one for one in waiting if isinstance(one, RecallPlans)):
                await write(wire.WorkerLinkResponse(recall=wire.RecallPlans(**recall._asdict())))
            if None in waiting:
                await write(wire.WorkerLinkResponse(released=wire.WorkerReleased()))


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Snapshots of the server."""

    def __init__(self, driver: SchedulerDriver) -> None:
        self._driver = driver

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        return admin_pb2.GetStatusResponse(status=status_to_wire(self._driver.status(max_jobs_from_wire(request))))

    async def WatchStatus(self, request: admin_pb2.WatchStatusRequest, context: Any) -> None:  # type: ignore[override]
        # Writes to the context instead of yielding: a call that is not a generator is cancelled at its await.
        interval_s, max_jobs = interval_from_wire(request), max_jobs_from_wire(request)
        while True:
            await context.write(admin_pb2.WatchStatusResponse(status=status_to_wire(self._driver.status(max_jobs))))
            await asyncio.sleep(interval_s)


def register(server: grpc.aio.Server, driver: SchedulerDriver) -> None:
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerService(driver), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(driver), server)
