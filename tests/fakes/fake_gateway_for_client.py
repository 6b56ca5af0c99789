"""The gateway's end of Generate and of the status, over real gRPC: it generates nonsense for the client commands."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.domain.errors import AdmissionFullError, FastServeError, InvalidFieldError, UnknownModelError
from services.runtime.error_statuses import status_of, to_grpc

VOCABULARY_SIZE = 1000
PREEMPTIONS_PER_JOB = 2


async def refuse(context: Any, error: FastServeError) -> NoReturn:
    """End the call with the typed error's status."""
    await context.abort_with_status(to_grpc(status_of(error)))
    raise AssertionError("abort raises")


@dataclass
class FakeGatewayForClient(inference_pb2_grpc.InferenceServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """Every job gets max_tokens tokens at once, one a message. Prompts with a meaning: `refuse`, `full`, `break`
    (after one token), `abort`.

    More than `most_jobs` jobs are refused. Once `lost_after` jobs have finished, its status can't be had any more.
    """

    most_jobs: int = 1_000_000
    lost_after: int = 1_000_000
    name: str = "fake"
    requests: list[inference_pb2.GenerateRequest] = field(default_factory=list)
    tokens: int = 0
    finished: int = 0
    address: str = ""
    started_s: float = field(default_factory=time.monotonic)
    jobs: list[admin_pb2.JobStatus] = field(default_factory=list)
    max_jobs: int | None = None
    """How many jobs were last asked for."""
    watched_every_s: list[float] = field(default_factory=list)
    """The interval of each call of WatchStatus."""

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """The stream of one job."""
        self.requests.append(request)
        if request.model not in ("", "fake"):
            await refuse(context, UnknownModelError(f"model {request.model!r} is not served here"))
        if request.text == "refuse":
            await refuse(context, InvalidFieldError("sampling.temperature", "must be at most 100"))
        if request.text == "full" or len(self.requests) > self.most_jobs:
            await refuse(context, AdmissionFullError("100 jobs are queued", 1.5))
        most = request.sampling.max_tokens if request.sampling.HasField("max_tokens") else 16
        prompt_tokens = len(request.token_ids.ids) or len(request.text.split())
        for number in range(most):
            self.tokens += 1
            response = inference_pb2.GenerateResponse(
                request_id="r1", first_token_number=number, token_ids=[number], text=f"w{number} "
            )
            if request.text == "break" and number == 1:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            if number == most - 1:
                ended = (
                    inference_pb2.FINISH_REASON_ABORT if request.text == "abort" else inference_pb2.FINISH_REASON_LENGTH
                )
                response.finish_reason = ended
                response.usage.prompt_tokens = prompt_tokens
                response.usage.completion_tokens = most
                response.usage.total_tokens = prompt_tokens + most
                response.usage.preemptions = PREEMPTIONS_PER_JOB
                self.finished += 1
            yield response

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        """One model."""
        model = inference_pb2.Model(id="fake", max_model_len=2048, vocabulary_size=VOCABULARY_SIZE)
        return inference_pb2.ListModelsResponse(models=[model])

    def status(self) -> admin_pb2.Status:
        """Counters that grow with the jobs."""
        level = admin_pb2.LevelStatus(level=0, quantum_s=0.01, running=0, waiting=0, swapped_out=0)
        group = admin_pb2.GroupStatus(
            ready=True,
            levels=[level],
            device_blocks_total=64,
            device_blocks_free=48,
            host_blocks_total=256,
            host_blocks_free=256,
            block_size=16,
            device=f"cpu of {self.name}",
            worker_joins=1,
            max_batch=48,
        )
        counters = admin_pb2.Counters(
            preemptions=100 + PREEMPTIONS_PER_JOB * self.finished,
            iterations=1000 + self.tokens,
            offloaded_bytes=4096 * self.finished,
            stall_s=0.5 * self.finished,
            generation_tokens=self.tokens,
            jobs_admitted=len(self.requests),
            jobs_finished=self.finished,
        )
        return admin_pb2.Status(
            model=self.name,
            policy="skip-join-mlfq",
            kv_policy="proactive",
            groups=[group],
            counters=counters,
            uptime_s=time.monotonic() - self.started_s,
            max_queued_jobs=20000,
            jobs=self.jobs,
        )

    async def _check_there(self, context: Any) -> None:
        if self.finished >= self.lost_after:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        """The status now."""
        await self._check_there(context)
        self.max_jobs = request.max_jobs
        return admin_pb2.GetStatusResponse(status=self.status())

    async def WatchStatus(
        self, request: admin_pb2.WatchStatusRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchStatusResponse]:
        """Two snapshots, then the end."""
        self.watched_every_s.append(request.interval_s)
        for _ in range(2):
            await self._check_there(context)
            yield admin_pb2.WatchStatusResponse(status=self.status())


@asynccontextmanager
async def serving(gateway: FakeGatewayForClient) -> AsyncIterator[FakeGatewayForClient]:
    """The gateway on a free port, its address filled in."""
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(gateway, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(gateway, server)
    checks = health.aio.HealthServicer()
    await checks.set("readiness", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    gateway.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield gateway
    finally:
        await server.stop(None)
