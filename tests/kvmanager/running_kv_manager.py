"""A KV manager that serves over real gRPC on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from services.kvmanager.driver import KvManagerDriver
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.kvmanager.service import KV_MANAGER_SERVICE, register
from services.runtime.recording.recorder import Recorder
from services.runtime.server import RpcServer
from services.runtime.terms import NO_TERM
from tests.builders.channels import patient_channel
from tests.kvmanager.fake_scheduler_for_kv_manager import FakeSchedulerForKvManager
from tests.kvmanager.fake_worker_for_kv_manager import FakeWorkerForKvManager


class RunningKvManager:
    """A KV manager that serves."""

    def __init__(self, driver: KvManagerDriver, channel: grpc.aio.Channel) -> None:
        self.driver = driver
        self.channel = channel

    def scheduler(self, term: int = NO_TERM) -> FakeSchedulerForKvManager:
        """A scheduler dials."""
        return FakeSchedulerForKvManager(self.channel, term)

    async def worker(self, epoch: int, **changes: int) -> FakeWorkerForKvManager:
        """A worker joins."""
        worker = FakeWorkerForKvManager(self.channel, epoch)
        await worker.join(**changes)
        return worker


def knobs(policy: str = "reactive") -> KvConfig:
    """Settings with which every block is asked for by itself."""
    return KvConfig(kv_policy_named(policy), lookahead_tokens=0, grant_blocks=1)


@asynccontextmanager
async def running_kv_manager(
    policy: str = "reactive", recorder_of: Callable[[int], Recorder | None] = lambda group: None
) -> AsyncIterator[RunningKvManager]:
    """A KV manager on a free port."""
    driver = KvManagerDriver(knobs(policy), recorder_of)
    server = RpcServer("127.0.0.1:0", (KV_MANAGER_SERVICE,), lambda grpc_server: register(grpc_server, driver))
    await server.start()
    await server.set_ready(True)
    turns = asyncio.create_task(driver.run())
    try:
        async with patient_channel(server.address) as channel:
            yield RunningKvManager(driver, channel)
    finally:
        await server.stop(0)
        turns.cancel()
        [ended] = await asyncio.gather(turns, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
