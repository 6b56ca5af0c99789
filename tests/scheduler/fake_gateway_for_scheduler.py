"""The gateway's end of GatewayLink, over real gRPC: it collects what it is told."""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import grpc

from fastserve.v1 import scheduler_pb2 as wire
from fastserve.v1 import scheduler_pb2_grpc
from services.domain.generation import EndReason, TokenLogprob
from services.domain.guide import Guide
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.domain.submission import JobUpdate, ServingLimits, Submission
from services.wire.gateway_scheduler import cancel_to_wire, limits_from_wire, submission_to_wire, updates_from_wire
from tests.builders.waits import LIMIT_S
from tests.scheduler.served_setup import FINGERPRINT


def logprob_of(token_id: int) -> TokenLogprob:
    """What the worker of these tests says of its tokens."""
    return TokenLogprob(token_id, -0.5, ((token_id, -0.5),))


class FakeGatewayForScheduler:
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
        made: Sequence[int] = (),
        age_s: float = 0.0,
        stop_token_ids: tuple[int, ...] = (),
        guide: Guide | None = None,
    ) -> None:
        """`made`: the output so far of a job that another scheduler had."""
        sampling = JobSampling(max_tokens=output, seed=1, logprobs=logprobs, stop_token_ids=stop_token_ids, guide=guide)
        made_logprobs = () if logprobs is None else tuple(logprob_of(token_id) for token_id in made)
        submission = Submission(
            JobId(job), body, array("I", prompt), sampling, resume, deadline_in_s,
            output=array("I", made), output_logprobs=made_logprobs, age_s=age_s,
        )  # fmt: skip
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
