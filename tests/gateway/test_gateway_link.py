"""The stream to the scheduler: made, lost, made again, refused."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import scheduler_pb2_grpc
from services.domain.errors import PeerMismatchError
from services.domain.generation import EndReason
from services.runtime.model_files import fingerprint
from services.runtime.server import RpcServer
from tests.builders.status_details import retry_after_s
from tests.gateway.fake_scheduler_for_gateway import SOON_S, FakeSchedulerForGateway
from tests.gateway.running_gateway import RunningGateway, running_gateway

REQUEST = api.GenerateRequest(text="the dog")


async def test_the_gateway_says_which_model_it_has(
    model: Path, pair: tuple[RunningGateway, FakeSchedulerForGateway]
) -> None:
    (hello,) = pair[1].hellos
    assert hello.model_fingerprint == fingerprint(model)
    assert hello.gateway_id


async def test_without_a_scheduler_requests_are_unavailable_and_the_gateway_lives(model: Path) -> None:
    async with running_gateway(model, "127.0.0.1:1", wait_ready=False) as gateway:
        error = await gateway.refusal(REQUEST)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_after_s(error) > 0
        assert await gateway.health("readiness") == "NOT_SERVING"
        assert await gateway.health("liveness") == "SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.inference.ListModels(api.ListModelsRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_attempt_that_fails_is_followed_by_one_on_a_new_connection(model: Path) -> None:
    """Behind a Service's name the old one would stay with a scheduler that does not lead."""
    peers: list[str] = []
    dialled = asyncio.Event()

    class SchedulerOnStandby:
        async def GatewayLink(self, request_iterator: object, context: Any) -> None:
            peers.append(context.peer())
            if len(peers) == 3:
                dialled.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "on standby")

        WorkerLink = GatewayLink

    add: Any = scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server
    server = RpcServer("127.0.0.1:0", (), lambda grpc_server: add(SchedulerOnStandby(), grpc_server))
    await server.start()
    async with running_gateway(model, server.address, wait_ready=False):
        await asyncio.wait_for(dialled.wait(), SOON_S)
    await server.stop(0.0)
    assert len(set(peers[:3])) == 3


async def test_streams_whose_scheduler_stays_away_end_as_unavailable_and_a_new_one_is_found(model: Path) -> None:
    scheduler = FakeSchedulerForGateway()
    await scheduler.start()
    async with running_gateway(model, scheduler.address, resubmit_limit=0.1) as gateway:
        streams = [gateway.generate(REQUEST) for _ in range(3)]
        for job in [await scheduler.next_job() for _ in streams]:
            job.send(5)
        for stream in streams:
            assert isinstance(await stream.read(), api.GenerateResponse)
        await scheduler.stop()
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(stream.read(), SOON_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert retry_after_s(caught.value) > 0
        await gateway.until_health("readiness", "NOT_SERVING")
        assert (await gateway.refusal(REQUEST)).code() is grpc.StatusCode.UNAVAILABLE
        successor = FakeSchedulerForGateway(address=scheduler.address)
        await successor.start()
        await gateway.until_health("readiness", "SERVING")
        collecting = asyncio.create_task(gateway.collect(REQUEST))
        (await successor.next_job()).send(6, finish=EndReason.LENGTH)
        assert list((await collecting)[0].token_ids) == [6]
    await successor.stop()


async def test_a_pause_between_tokens_does_not_end_the_stream(
    pair: tuple[RunningGateway, FakeSchedulerForGateway],
) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(REQUEST)
    job = await scheduler.next_job()
    job.send(5)
    assert isinstance(await stream.read(), api.GenerateResponse)
    reading = asyncio.create_task(stream.read())
    await gateway.health("readiness")
    assert not reading.done()
    job.send(6, finish=EndReason.LENGTH)
    message = await asyncio.wait_for(reading, SOON_S)
    assert isinstance(message, api.GenerateResponse)
    assert list(message.token_ids) == [6]


async def test_a_gap_in_the_numbers_of_tokens_is_an_internal_error_of_that_request_alone(
    pair: tuple[RunningGateway, FakeSchedulerForGateway],
) -> None:
    gateway, scheduler = pair
    broken = asyncio.create_task(gateway.refusal(REQUEST))
    job = await scheduler.next_job()
    sound = asyncio.create_task(gateway.collect(REQUEST))
    other = await scheduler.next_job()
    job.update([5])
    job.send(6)
    assert (await broken).code() is grpc.StatusCode.INTERNAL
    other.send(7, finish=EndReason.LENGTH)
    assert list((await sound)[0].token_ids) == [7]


async def test_a_scheduler_with_another_model_ends_the_gateway_with_the_reason(model: Path) -> None:
    scheduler = FakeSchedulerForGateway()
    scheduler.mismatch = "the scheduler serves another model"
    await scheduler.start()
    with pytest.raises(PeerMismatchError, match="another model"):
        async with running_gateway(model, scheduler.address, wait_ready=False) as gateway:
            await asyncio.wait_for(asyncio.shield(gateway.serving), SOON_S)
    await scheduler.stop()
