"""A scheduler that serves over real gRPC on loopback, and its peers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from fastserve.v1 import admin_pb2_grpc
from services.runtime.recording.recorder import Recorder
from services.runtime.server import RpcServer
from services.scheduler.driver import SchedulerDriver
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_link import SchedulerLink
from services.scheduler.service import ADMIN_SERVICE, SCHEDULER_SERVICE, register
from tests.builders.channels import patient_channel
from tests.builders.waits import until
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler
from tests.scheduler.fake_kv_manager_for_scheduler import FakeKvManagerForScheduler, kv_manager
from tests.scheduler.fake_worker_for_scheduler import FakeWorkerForScheduler
from tests.scheduler.served_setup import served_with


@dataclass
class RunningScheduler:
    """A running scheduler."""

    driver: SchedulerDriver
    kv: FakeKvManagerForScheduler
    channel: grpc.aio.Channel
    ready: list[bool]
    address: str

    @property
    def admin(self) -> Any:
        return admin_pb2_grpc.AdminServiceStub(self.channel)


@asynccontextmanager
async def running_scheduler(
    config: SchedulerConfig | None = None, most_groups: int = 1, recorders: Sequence[Recorder | None] = ()
) -> AsyncIterator[RunningScheduler]:
    """A scheduler on loopback with its KV manager, both stopped at the end. `recorders`: one a group, or none."""
    served = served_with(config or SchedulerConfig(), most_groups)
    ready: list[bool] = []
    async with kv_manager() as (kv, kv_address), patient_channel(kv_address) as kv_channel:
        link = SchedulerLink(kv_channel, kv_address)
        driver = SchedulerDriver(served, link, ready.append, lambda group: recorders[group] if recorders else None)
        server = RpcServer("127.0.0.1:0", (SCHEDULER_SERVICE, ADMIN_SERVICE), lambda one: register(one, driver))
        await server.start()
        tasks = [asyncio.create_task(driver.run()), asyncio.create_task(link.run(driver.inbox.post))]
        try:
            async with patient_channel(server.address) as channel:
                yield RunningScheduler(driver, kv, channel, ready, server.address)
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
        finally:
            await server.stop(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scheduler_with_peers(
    config: SchedulerConfig | None = None,
) -> AsyncIterator[tuple[RunningScheduler, FakeWorkerForScheduler, FakeGatewayForScheduler]]:
    """All four are up; the worker runs nothing by itself."""
    async with running_scheduler(config) as served:
        worker = FakeWorkerForScheduler(served.channel)
        await worker.join()
        gateway = FakeGatewayForScheduler(served.channel)
        await gateway.join()
        await gateway.until_ready()
        await until(lambda: served.ready == [True])
        yield served, worker, gateway
