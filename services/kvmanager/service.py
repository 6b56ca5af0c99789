"""The RPCs of the KV manager: thin handlers that post what they read to the driver's inbox and write what is waiting
in their peer's outbox.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from fastserve.v1 import kvmanager_pb2 as wire
from fastserve.v1 import kvmanager_pb2_grpc
from services.domain.errors import InvalidFieldError, ProtocolError
from services.domain.ids import MOST_GROUPS
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.driver import KvManagerDriver
from services.kvmanager.kv_manager_inbox import (
    KvWorkerArrived,
    KvWorkerLeft,
    KvWorkerSaid,
    SchedulerArrived,
    SchedulerBroke,
    SchedulerLeft,
    SchedulerSaid,
)
from services.kvmanager.kv_streams import KvWorkerStream, SchedulerStream
from services.runtime.served_streams import first_message, until_one_ends
from services.runtime.terms import NewestTerm, term_of
from services.wire.kvmanager_worker import acknowledgements_from_wire, commands_to_wire, kv_hello_from_wire
from services.wire.scheduler_kvmanager import kv_batch_to_wire, scheduler_batch_from_wire, traces_from_wire

KV_MANAGER_SERVICE = wire.DESCRIPTOR.services_by_name["KvManagerService"].full_name


async def _hello(requests: AsyncIterator[wire.KvManagerServiceWorkerLinkRequest]) -> KvWorkerFacts:
    """The stream's first message. Raises InvalidFieldError for a stream that does not begin with a hello."""
    first = await first_message(requests)
    try:
        return kv_hello_from_wire(first)
    except ProtocolError as error:
        raise InvalidFieldError("hello", str(error)) from None


def _heard(peer: SchedulerStream, request: wire.SchedulerLinkRequest) -> SchedulerSaid | SchedulerBroke:
    """A message that can't be read is the fault of its group alone. Raises ProtocolError if it names no group."""
    if request.group >= MOST_GROUPS:
        raise ProtocolError(f"a SchedulerLinkRequest names group {request.group}, but there are {MOST_GROUPS} at most")
    try:
        return SchedulerSaid(peer, *scheduler_batch_from_wire(request))
    except ProtocolError as error:
        return SchedulerBroke(peer, request.group, error)


class KvManagerService(kvmanager_pb2_grpc.KvManagerServiceServicer):
    """The streams of the scheduler and of workers."""

    def __init__(self, driver: KvManagerDriver) -> None:
        self._driver = driver
        # Only a scheduler of the newest term may command.
        self._terms = NewestTerm()

    async def SchedulerLink(self, requests: AsyncIterator[wire.SchedulerLinkRequest], context: Any) -> None:  # type: ignore[override]
        self._terms.check_dialling(term_of(context.invocation_metadata()))
        peer = SchedulerStream()
        await self._driver.inbox.put(SchedulerArrived(peer))
        try:
            await context.send_initial_metadata(())
            await until_one_ends(
                self._read_scheduler(peer, requests), self._write_scheduler(peer, context.write), peer.until_closed()
            )
        finally:
            self._driver.inbox.post(SchedulerLeft(peer))

    async def _read_scheduler(self, peer: SchedulerStream, requests: AsyncIterator[wire.SchedulerLinkRequest]) -> None:
        async for request in requests:
            if self._driver.traces is not None and request.traces:
                self._driver.traces.learn(traces_from_wire(request))
            await self._driver.inbox.put(_heard(peer, request))

    async def _write_scheduler(
        self, peer: SchedulerStream, write: Callable[[wire.SchedulerLinkResponse], Awaitable[None]]
    ) -> None:
        if newest_epoch := self._driver.newest_epoch:
            await write(wire.SchedulerLinkResponse(newest_epoch=newest_epoch))
        while True:
            for batch in await peer.take():
                await write(kv_batch_to_wire(*batch))

    async def WorkerLink(  # type: ignore[override]
        self, requests: AsyncIterator[wire.KvManagerServiceWorkerLinkRequest], context: Any
    ) -> None:
        facts = await _hello(requests)
        self._terms.check_epoch(facts.pools.epoch)
        self._driver.check_worker(facts)
        peer = KvWorkerStream(facts.group, facts.pools.epoch)
        await self._driver.inbox.put(KvWorkerArrived(peer, facts))
        try:
            await context.send_initial_metadata(())
            await until_one_ends(
                self._read_worker(peer, requests), self._write_worker(peer, context.write), peer.until_closed()
            )
        finally:
            self._driver.inbox.post(KvWorkerLeft(peer))

    async def _read_worker(
        self, peer: KvWorkerStream, requests: AsyncIterator[wire.KvManagerServiceWorkerLinkRequest]
    ) -> None:
        async for request in requests:
            await self._driver.inbox.put(KvWorkerSaid(peer, *acknowledgements_from_wire(request)))

    async def _write_worker(
        self, peer: KvWorkerStream, write: Callable[[wire.KvManagerServiceWorkerLinkResponse], Awaitable[None]]
    ) -> None:
        while True:
            for epoch, commands in await peer.take():
                await write(commands_to_wire(epoch, commands))


def register(server: grpc.aio.Server, driver: KvManagerDriver) -> None:
    kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(KvManagerService(driver), server)
