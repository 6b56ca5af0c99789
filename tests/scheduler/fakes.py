"""Peers of a scheduler over real gRPC on loopback: a KV manager with room for everybody, a worker that makes up tokens,
a gateway.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from fastserve.v1 import admin_pb2_grpc, kvmanager_pb2_grpc, scheduler_pb2_grpc
from fastserve.v1 import kvmanager_pb2 as kv_wire
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import FastServeError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import Epoch, JobId
from services.domain.iteration import Plan, WorkerCounters, WorkerResult
from services.domain.job_sampling import JobSampling
from services.domain.protocol import IterationResult, SampledToken, SchedulerToKv
from services.domain.server_status import KvLinkItem
from services.domain.submission import JobUpdate, ServingLimits, Submission
from services.domain.worker_facts import WorkerFacts
from services.runtime.channel import open_channel
from services.runtime.error_statuses import from_grpc
from services.runtime.server import RpcServer
from services.scheduler.driver import SchedulerDriver
from services.scheduler.machine.scheduler_events import ToKv
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_link import SchedulerLink
from services.scheduler.service import ADMIN_SERVICE, SCHEDULER_SERVICE, register
from services.scheduler.worker_group import ServedSetup
from services.wire.gateway_scheduler import cancel_to_wire, limits_from_wire, submission_to_wire, updates_from_wire
from services.wire.scheduler_kvmanager import kv_batch_to_wire, scheduler_batch_from_wire
from services.wire.scheduler_worker import plan_from_wire, result_to_wire, worker_facts_to_wire
from tests.scheduler.machine.fake_kv import FakeKv
from tests.scheduler.machine.virtual import profile

LIMIT_S = 10.0
FINGERPRINT = "cafe"
BLOCK_SIZE = 16
VOCABULARY_SIZE = 50_000


class FakeKvService(kvmanager_pb2_grpc.KvManagerServiceServicer):
    """Answers as FakeKv does. `extra` is sent with the next answer."""

    def __init__(self) -> None:
        self.kv = FakeKv()
        self.extra: list[KvLinkItem] = []
        self.streams = 0
        self.calls: list[Any] = []

    @property
    def heard(self) -> list[SchedulerToKv]:
        return self.kv.heard

    async def WorkerLink(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        raise AssertionError("the worker of these tests has no KV")

    async def SchedulerLink(self, requests: AsyncIterator[kv_wire.SchedulerLinkRequest], context: Any) -> None:  # type: ignore[override]
        self.streams += 1
        self.calls.append(context)
        async for request in requests:
            epoch, messages = scheduler_batch_from_wire(request)
            answers = self.kv.answers(ToKv(epoch, message) for message in messages)
            items: list[KvLinkItem] = [answer.message for answer in answers]
            items += self.extra
            self.extra = []
            if items:
                await context.write(kv_batch_to_wire(epoch, items))


async def end_of(call: Any) -> FastServeError:
    """The error with which a stream ends."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return from_grpc(error)
    raise AssertionError("it ended well")


def token_of(job: str, number: int) -> int:
    """The token that the worker makes up."""
    return (sum(job.encode()) * 31 + number * 7) % VOCABULARY_SIZE


class FakeWorker:
    """A worker. `step` finishes the oldest plan; `serve` finishes them as they come."""

    def __init__(self, channel: grpc.aio.Channel, epoch: int = 1, **facts: Any) -> None:
        self.facts = WorkerFacts(
            epoch=Epoch(epoch),
            group=facts.get("group", 0),
            model_fingerprint=facts.get("model_fingerprint", FINGERPRINT),
            block_size=facts.get("block_size", BLOCK_SIZE),
            device_blocks=facts.get("device_blocks", 1000),
            host_blocks=4000,
            max_model_len=facts.get("max_model_len", 2048),
            block_bytes=1024,
            profile=profile(),
            device="cpu",
        )
        self.call: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel).WorkerLink()
        self.plans: list[Plan] = []
        self.ends_at: dict[str, int] = {}
        """Job -> number of the token that ends it."""
        self._known: dict[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._wants: dict[str, bool] = {}
        self._busy_s = 0.0

    async def join(self) -> None:
        """Say hello, hear welcome. Raises the stream's status."""
        await self.call.write(wire.WorkerLinkRequest(hello=worker_facts_to_wire(self.facts)))
        async with asyncio.timeout(LIMIT_S):
            answer = await self.call.read()
        assert answer.HasField("welcome")

    async def step(self, limit_s: float | None = LIMIT_S) -> Plan:
        """Run the next plan."""
        async with asyncio.timeout(limit_s):
            response = await self.call.read()
        assert response is not grpc.aio.EOF, await self.call.details()
        plan = plan_from_wire(response.plan)
        self.plans.append(plan)
        tokens: list[SampledToken] = []
        logprobs: dict[JobId, TokenLogprob] = {}
        for work in plan.entries:
            if work.spec is not None:
                self._known[work.job_id] = work.spec.known_tokens
                self._prompts[work.job_id] = work.spec.prompt_tokens
                self._wants[work.job_id] = work.spec.sampling.logprobs is not None
            if work.to_token == self._known[work.job_id]:
                number = work.to_token - self._prompts[work.job_id]
                token = token_of(work.job_id, number)
                tokens.append(SampledToken(work.job_id, token, self.ends_at.get(work.job_id) == number))
                if self._wants.get(work.job_id):
                    logprobs[work.job_id] = TokenLogprob(token, -0.5, ((token, -0.5),))
                self._known[work.job_id] += 1
        self._busy_s += 0.25
        result = IterationResult(plan.epoch, plan.plan_number, tuple(tokens), (), 0.001)
        counters = WorkerCounters(busy_s=self._busy_s)
        message = result_to_wire(WorkerResult(result, logprobs, counters))
        await self.call.write(wire.WorkerLinkRequest(result=message))
        return plan

    async def serve(self) -> None:
        """Run plans for ever."""
        while True:
            await self.step(None)


class FakeGateway:
    """A gateway's stream, collecting what it is told."""

    def __init__(self, channel: grpc.aio.Channel, gateway_id: str = "g1", fingerprint: str = FINGERPRINT) -> None:
        self.call: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel).GatewayLink()
        self.limits: list[ServingLimits] = []
        self.outputs: dict[str, list[int]] = {}
        self.first_numbers: dict[str, int] = {}
        self.last: dict[str, JobUpdate] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self._hello = wire.GatewayHello(gateway_id=gateway_id, model_fingerprint=fingerprint)

    async def join(self) -> None:
        await self.call.write(wire.GatewayLinkRequest(hello=self._hello))
        async with asyncio.timeout(LIMIT_S):
            answer = await self.call.read()
        self.limits.append(limits_from_wire(answer.welcome.limits))

    async def submit(
        self,
        job: str,
        prompt: Sequence[int] = (1, 2, 3),
        output: int = 4,
        *,
        body: bytes = b"body",
        resume: int = 0,
        deadline_in_s: float | None = None,
        logprobs: int | None = None,
    ) -> None:
        sampling = JobSampling(max_tokens=output, seed=1, logprobs=logprobs)
        submission = Submission(JobId(job), body, array("I", prompt), sampling, resume, deadline_in_s)
        self.last.pop(job, None)
        await self.call.write(wire.GatewayLinkRequest(submit=submission_to_wire(submission)))

    async def cancel(self, job: str, reason: EndReason = EndReason.CANCELLED) -> None:
        await self.call.write(wire.GatewayLinkRequest(cancel=cancel_to_wire(JobId(job), reason)))

    async def read(self) -> None:
        """Take the next message."""
        async with asyncio.timeout(LIMIT_S):
            response = await self.call.read()
        assert response is not grpc.aio.EOF, await self.call.details()
        if response.HasField("limits"):
            self.limits.append(limits_from_wire(response.limits))
        for update in updates_from_wire(response.updates):
            output = self.outputs.setdefault(update.job_id, [])
            first = self.first_numbers.setdefault(update.job_id, update.first_token_number)
            if update.token_ids:
                assert update.first_token_number == first + len(output), "a gap or a repeat"
            output.extend(update.token_ids)
            self.logprobs.setdefault(update.job_id, []).extend(update.logprobs)
            if update.finish is not None or update.error is not None:
                self.last[update.job_id] = update

    def finish_of(self, job: str) -> EndReason | None:
        """How the job ended."""
        return self.last[job].finish

    async def until_ended(self, *jobs: str) -> None:
        while not all(job in self.last for job in jobs):
            await self.read()

    async def until_ready(self) -> None:
        while not self.limits[-1].ready:
            await self.read()


@dataclass
class Running:
    """A running scheduler."""

    driver: SchedulerDriver
    kv: FakeKvService
    channel: grpc.aio.Channel
    ready: list[bool]

    @property
    def admin(self) -> Any:
        return admin_pb2_grpc.AdminServiceStub(self.channel)

    async def until(self, condition: Any) -> None:
        """Wait for something that a peer's message brings about."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.005)


@asynccontextmanager
async def kv_manager() -> AsyncIterator[tuple[FakeKvService, str]]:
    """A KV manager on loopback, and its address."""
    kv = FakeKvService()

    def add(server: grpc.aio.Server) -> None:
        kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(kv, server)

    server = RpcServer("127.0.0.1:0", (), add)
    await server.start()
    try:
        yield kv, server.address
    finally:
        await server.stop(0)


def served_with(config: SchedulerConfig) -> ServedSetup:
    """What the scheduler of these tests serves."""
    return ServedSetup("tiny", FINGERPRINT, VOCABULARY_SIZE, 2048, BLOCK_SIZE, config)


@asynccontextmanager
async def running(config: SchedulerConfig | None = None) -> AsyncIterator[Running]:
    """A scheduler on loopback with its KV manager, both stopped at the end."""
    served = served_with(config or SchedulerConfig())
    ready: list[bool] = []
    async with kv_manager() as (kv, kv_address), open_channel(kv_address) as kv_channel:
        link = SchedulerLink(kv_channel, kv_address)
        driver = SchedulerDriver(served, link, ready.append)
        server = RpcServer("127.0.0.1:0", (SCHEDULER_SERVICE, ADMIN_SERVICE), lambda one: register(one, driver))
        await server.start()
        tasks = [asyncio.create_task(driver.run()), asyncio.create_task(link.run(driver.inbox.post))]
        try:
            async with open_channel(server.address) as channel:
                yield Running(driver, kv, channel, ready)
            assert not any(task.done() for task in tasks), [task.exception() for task in tasks if task.done()]
        finally:
            await server.stop(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serving(config: SchedulerConfig | None = None) -> AsyncIterator[tuple[Running, FakeWorker, FakeGateway]]:
    """All four are up; the worker runs nothing by itself."""
    async with running(config) as served:
        worker = FakeWorker(served.channel)
        await worker.join()
        gateway = FakeGateway(served.channel)
        await gateway.join()
        await gateway.until_ready()
        await served.until(lambda: served.ready == [True])
        yield served, worker, gateway


def tokens_of(job: str, count: int, first: int = 0) -> list[int]:
    return [token_of(job, number) for number in range(first, first + count)]


async def steps(worker: FakeWorker, count: int) -> None:
    for _ in range(count):
        await worker.step()
