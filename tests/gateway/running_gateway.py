"""A gateway that serves over real gRPC on loopback, in the test's own process, and a client for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastserve.v1 import admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.domain.submission import ServingLimits
from services.gateway.__main__ import serve
from services.gateway.settings import GatewaySettings
from services.runtime.process import ServiceProcess
from services.runtime.tls.tls_files import Certificates, TlsFiles
from tests.builders.channels import patient_channel
from tests.gateway.fake_scheduler_for_gateway import READY, SOON_S, FakeSchedulerForGateway

MODEL_NAME = "tiny"


class ProcessInTest(ServiceProcess[GatewaySettings]):
    """In the place of the gateway's own process: passes its addresses to the test."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__("gateway", settings)
        self.addresses: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    def announce_ready(self, grpc: str, metrics: str | None = None, probe: str | None = None) -> None:
        self.addresses.set_result((grpc, metrics or ""))


class RunningGateway:
    """A running gateway and the stubs to call it."""

    def __init__(self, process: ProcessInTest, channel: grpc.aio.Channel, serving: "asyncio.Task[None]") -> None:
        self.process = process
        self.serving = serving
        self.address, self.metrics_address = process.addresses.result()
        self.channel = channel
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)

    def generate(self, request: inference_pb2.GenerateRequest, timeout: float | None = SOON_S) -> Any:
        return self.inference.Generate(request, timeout=timeout)

    async def collect(self, request: inference_pb2.GenerateRequest) -> list[inference_pb2.GenerateResponse]:
        """All messages of the stream."""
        return [message async for message in self.generate(request)]

    async def refusal(self, request: inference_pb2.GenerateRequest) -> grpc.aio.AioRpcError:
        """The error of a request that must fail."""
        try:
            await self.collect(request)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the request was not refused")

    async def health(self, service: str) -> str:
        response = await self._health.Check(health_pb2.HealthCheckRequest(service=service), timeout=SOON_S)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)

    async def until_health(self, service: str, wanted: str) -> None:
        """Waits until the health service reports the wanted status."""
        watch = self._health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=SOON_S)
        async for response in watch:
            if health_pb2.HealthCheckResponse.ServingStatus.Name(response.status) == wanted:
                watch.cancel()
                return

    async def metrics(self) -> dict[str, float]:
        """The samples of a scrape, by name and labels as written."""
        reader, writer = await asyncio.open_connection(*self.metrics_address.split(":"))
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: test\r\n\r\n")
        text = (await asyncio.wait_for(reader.read(), SOON_S)).decode()
        writer.close()
        lines = text.partition("\r\n\r\n")[2].splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def stop(self) -> None:
        self.process.stopping.set()
        await asyncio.wait_for(self.serving, SOON_S)


@asynccontextmanager
async def running_gateway(
    model: Path, scheduler: str, wait_ready: bool = True, client: TlsFiles | None = None, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway on free ports, stopped at the end. `client`: the certificates of the test's own client."""
    process = ProcessInTest(
        GatewaySettings(
            scheduler=scheduler,
            model=model,
            **{"grpc_port": 0, "served_model_name": MODEL_NAME, "drain_limit": 0.0, **settings},
        )
    )
    serving = asyncio.create_task(serve(process))
    await asyncio.wait((serving, process.addresses), timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    async with patient_channel(process.addresses.result()[0], tls=Certificates.of(client)) as channel:
        gateway = RunningGateway(process, channel, serving)
        try:
            if wait_ready:
                await gateway.until_health("readiness", "SERVING")
            yield gateway
        finally:
            await gateway.stop()


Pair = tuple[RunningGateway, FakeSchedulerForGateway]


@asynccontextmanager
async def running_pair(model: Path, limits: ServingLimits = READY, **settings: Any) -> AsyncIterator[Pair]:
    """A gateway and its scheduler, which has these limits."""
    scheduler = FakeSchedulerForGateway(limits)
    await scheduler.start()
    try:
        async with running_gateway(model, scheduler.address, **settings) as gateway:
            yield gateway, scheduler
    finally:
        await scheduler.stop()
