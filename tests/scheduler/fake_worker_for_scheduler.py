"""The worker's end of the scheduler's WorkerLink, over real gRPC: it makes up tokens."""

import asyncio
import uuid
from collections import deque
from typing import Any

import grpc

from fastserve.v1 import scheduler_pb2 as wire
from fastserve.v1 import scheduler_pb2_grpc
from services.domain.generation import TokenLogprob
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import Plan, WorkerCounters, WorkerResult
from services.domain.protocol import IterationResult, PlansGivenBack, SampledToken
from services.domain.worker_facts import WorkerFacts
from services.wire.scheduler_worker import given_back_to_wire, plan_from_wire, result_to_wire, worker_facts_to_wire
from tests.builders.waits import LIMIT_S
from tests.scheduler.machine.checked_scheduler import COST
from tests.scheduler.served_setup import BLOCK_SIZE, FINGERPRINT, VOCABULARY_SIZE


def token_of(job: str, number: int) -> int:
    """The token that the worker makes up."""
    return (sum(job.encode()) * 31 + number * 7) % VOCABULARY_SIZE


def tokens_of(job: str, count: int, first: int = 0) -> list[int]:
    return [token_of(job, number) for number in range(first, first + count)]


class FakeWorkerForScheduler:
    """A worker. `step` finishes the oldest plan; `serve` finishes them as they come. `epoch` is the one that it was
    given.
    """

    def __init__(self, channel: grpc.aio.Channel, **facts: Any) -> None:
        self.epoch = Epoch(0)
        self.facts = WorkerFacts(
            last_epoch=Epoch(facts.get("last_epoch", 0)),
            group=facts.get("group", 0),
            model_fingerprint=facts.get("model_fingerprint", FINGERPRINT),
            block_size=facts.get("block_size", BLOCK_SIZE),
            device_blocks=facts.get("device_blocks", 1000),
            host_blocks=4000,
            max_model_len=facts.get("max_model_len", 2048),
            block_bytes=1024,
            profile=facts.get("profile", COST),
            device="cpu",
            worker_id=facts.get("worker_id", uuid.uuid4().hex),
        )
        self.call: Any = scheduler_pb2_grpc.SchedulerServiceStub(channel).WorkerLink()
        self.plans: list[Plan] = []
        self.recalled: list[PlanNumber | None] = []
        """The first plan that it gave back, of each recall."""
        self.ends_at: dict[str, int] = {}
        """Job -> number of the token that ends it."""
        self.failures: dict[JobId, str] = {}
        """Jobs that fail with the token that ends them, and why."""
        self._known: dict[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._wants: dict[str, bool] = {}
        self._busy_s = 0.0
        self._unread: deque[Plan] = deque()
        self.duration_s = 0.001
        """What it says of each iteration."""

    async def join(self) -> None:
        """Say hello, hear welcome. Raises the stream's status."""
        await self.call.write(wire.WorkerLinkRequest(hello=worker_facts_to_wire(self.facts)))
        async with asyncio.timeout(LIMIT_S):
            answer = await self.call.read()
        assert answer.HasField("welcome")
        self.epoch = Epoch(answer.welcome.epoch)

    async def read_plan(self, limit_s: float | None = LIMIT_S) -> Plan:
        """The next plan, which is not run."""
        while not self._unread:
            await self._take(await self._read(limit_s))
        return self._unread.popleft()

    async def _read(self, limit_s: float | None = LIMIT_S) -> wire.WorkerLinkResponse:
        async with asyncio.timeout(limit_s):
            response: Any = await self.call.read()
        assert response is not grpc.aio.EOF, await self.call.details()
        read: wire.WorkerLinkResponse = response
        return read

    async def _take(self, response: wire.WorkerLinkResponse) -> None:
        """Plans, or a recall: all of those that were not read go back."""
        self._unread.extend(map(plan_from_wire, response.plans.plans))
        if response.HasField("recall"):
            first: PlanNumber | None = None
            while self._unread and self._unread[-1].plan_number >= response.recall.first_plan_number:
                first = self._unread.pop().plan_number
            self.recalled.append(first)
            answer = given_back_to_wire(PlansGivenBack(self.epoch, first))
            await self.call.write(wire.WorkerLinkRequest(given_back=answer))

    async def read_ahead(self, count: int) -> None:
        """Read until so many plans wait to be run."""
        while len(self._unread) < count:
            await self._take(await self._read())

    async def read_recall(self) -> None:
        """Read until a recall is answered."""
        before = len(self.recalled)
        while len(self.recalled) == before:
            await self._take(await self._read())

    async def drain(self, limit_s: float) -> None:
        """Say that this worker is about to end."""
        await self.call.write(wire.WorkerLinkRequest(draining=wire.WorkerDraining(limit_s=limit_s)))

    async def until_released(self) -> None:
        """Run plans until no job needs this worker."""
        while True:
            while self._unread:
                await self.run(self._unread.popleft())
            response = await self._read()
            if response.HasField("released"):
                return
            await self._take(response)

    async def step(self, limit_s: float | None = LIMIT_S) -> Plan:
        """Run the next plan."""
        plan = await self.read_plan(limit_s)
        await self.run(plan)
        return plan

    async def run(self, plan: Plan) -> None:
        """Run a plan that was read."""
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
        result = IterationResult(plan.epoch, plan.plan_number, tuple(tokens), (), self.duration_s)
        counters = WorkerCounters(busy_s=self._busy_s)
        ended = {token.job_id for token in tokens if token.end_of_sequence}
        failures = {job_id: why for job_id, why in self.failures.items() if job_id in ended}
        message = result_to_wire(WorkerResult(result, logprobs, counters, failures))
        await self.call.write(wire.WorkerLinkRequest(results=wire.IterationResults(results=[message])))

    async def serve(self) -> None:
        """Run plans for ever."""
        while True:
            await self.step(None)


async def steps(worker: FakeWorkerForScheduler, count: int) -> None:
    for _ in range(count):
        await worker.step()
