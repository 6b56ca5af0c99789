"""A gateway that asks for keys, over gRPC: every call that is not named as open needs one, and has its limits."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fastserve.v1 import admin_pb2, front_pb2, front_pb2_grpc, inference_pb2, openai_pb2
from services.domain.generation import EndReason
from services.gateway.access.rate_limits import KeyLimits
from tests.builders.api_keys import add_key, bearer, remove_key
from tests.builders.status_details import details, retry_after_s
from tests.gateway.fake_scheduler_for_gateway import SOON_S, FakeSchedulerForGateway
from tests.gateway.running_gateway import RunningGateway, running_pair

UNAUTHENTICATED, EXHAUSTED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED
REQUEST = inference_pb2.GenerateRequest(
    token_ids=inference_pb2.TokenIds(ids=[5, 6]), sampling=inference_pb2.SamplingParams(max_tokens=3)
)


class Keyed(NamedTuple):
    """A gateway with a file of keys, and the scheduler that a test plays. `single` may have one request at a time."""

    gateway: RunningGateway
    scheduler: FakeSchedulerForGateway
    path: Path
    key: str
    single: str

    def generate(self, key: str | None = None, request: inference_pb2.GenerateRequest = REQUEST) -> Any:
        stub = self.gateway.inference
        return stub.Generate(request, timeout=SOON_S, metadata=bearer(key or self.key))

    async def refusal(self, key: str) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.generate(key).read()
        return refused.value


@pytest.fixture
async def keyed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keyed]:
    monkeypatch.setattr("services.gateway.access.key_ring.LOOK_S", 0.02)
    path = tmp_path / "keys.json"
    key, single = add_key(path, "alice"), add_key(path, "single", KeyLimits(max_concurrent=1))
    async with running_pair(model, api_keys_file=path) as (gateway, scheduler):
        yield Keyed(gateway, scheduler, path, key, single)


def methods(file: FileDescriptor) -> list[tuple[str, bool]]:
    """The methods of a file, and whether the client streams."""
    return [
        (f"/{service.full_name}/{method.name}", method.client_streaming)
        for service in file.services_by_name.values()
        for method in service.methods
    ]


async def code_without_a_key(channel: grpc.aio.Channel, method: str) -> grpc.StatusCode:
    begin: Any = channel.unary_stream(method)
    call = begin(b"", timeout=SOON_S)
    async for _ in call:
        break
    code: grpc.StatusCode = await call.code()
    return code


async def test_every_call_needs_a_key_but_what_is_named_as_open(keyed: Keyed) -> None:
    files = (inference_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR, openai_pb2.DESCRIPTOR)
    all_methods = [method for file in files for method, _ in methods(file)]
    assert len(all_methods) >= 9
    for method in all_methods:
        channel = keyed.gateway.channel
        if method.endswith("/GetOpenApi"):
            assert await code_without_a_key(channel, method) is grpc.StatusCode.OK
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await code_without_a_key(channel, method)
            assert refused.value.code() is UNAUTHENTICATED, method
    assert await keyed.gateway.health("readiness") == "SERVING"
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub
    asked = reflection(keyed.gateway.channel).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=SOON_S
    )
    assert len((await asked.read()).list_services_response.service) >= 5


async def test_who_shows_a_key_is_served(keyed: Keyed) -> None:
    stream = keyed.generate()
    (await keyed.scheduler.next_job()).send(7, 8, finish=EndReason.LENGTH)
    assert [list(message.token_ids) async for message in stream] == [[7, 8]]
    status = await keyed.gateway.admin.GetStatus(admin_pb2.GetStatusRequest(), metadata=bearer(keyed.key))
    assert status.status.model == "tiny"


async def test_a_link_of_a_front_is_open_and_each_of_its_calls_needs_a_key(keyed: Keyed) -> None:
    link: Any = front_pb2_grpc.FrontServiceStub(keyed.gateway.channel).FrontLink(timeout=SOON_S)
    for call_id, metadata in enumerate(({}, {"user": "alice"}, dict(bearer(keyed.key))), start=1):
        call = front_pb2.FrontCall(call_id=call_id, method="ListOpenAiModels", metadata=metadata, credit_bytes=100_000)
        await link.write(front_pb2.FrontLinkRequest(call=call))
    ends: dict[int, int] = {}
    while len(ends) < 3:
        for piece in (await link.read()).pieces:
            if piece.HasField("end"):
                ends[piece.call_id] = piece.end.code
    assert ends == {1: UNAUTHENTICATED.value[0], 2: UNAUTHENTICATED.value[0], 3: 0}
    link.cancel()


async def test_openais_names_are_in_the_refusal_of_openais_service(keyed: Keyed) -> None:
    begin: Any = keyed.gateway.channel.unary_stream("/fastserve.v1.OpenAiService/CreateCompletion")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await begin(b"", timeout=SOON_S).read()
    packed = next(value for name, value in refused.value.trailing_metadata() if name == "grpc-status-details-bin")
    assert b"invalid_api_key" in packed


async def add_and_wait(keyed: Keyed, name: str, limits: KeyLimits) -> str:
    """A new key, once the gateway knows it."""
    key = add_key(keyed.path, name, limits)
    async with asyncio.timeout(SOON_S):
        while True:
            call = keyed.gateway.admin.GetStatus(admin_pb2.GetStatusRequest(), metadata=bearer(key))
            if await call.code() is grpc.StatusCode.OK:
                return key


def asking_for(tokens: int) -> inference_pb2.GenerateRequest:
    """A request that may use so many tokens."""
    sampling = inference_pb2.SamplingParams(max_tokens=tokens - 1)
    return inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[5]), sampling=sampling)


async def test_limits_refuse_with_the_time_to_wait_and_others_go_on(keyed: Keyed) -> None:
    bob = await add_and_wait(keyed, "bob", KeyLimits(requests_per_minute=2, tokens_per_minute=100, max_concurrent=1))
    first = keyed.generate(bob, asking_for(60))
    job = await keyed.scheduler.next_job()
    at_a_time = await keyed.refusal(bob)
    assert at_a_time.code() is EXHAUSTED
    assert "1 requests at a time" in str(at_a_time.details())
    assert retry_after_s(at_a_time) == 1.0
    job.send(*[7] * 49, finish=EndReason.STOP)
    assert [len(message.token_ids) async for message in first] == [49]

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await keyed.generate(bob, asking_for(100)).read()
    assert "100 tokens per minute" in str(refused.value.details())
    assert 0 < retry_after_s(refused.value) <= 30, "the first one used 50 tokens"

    second = keyed.generate(bob, asking_for(40))
    (await keyed.scheduler.next_job()).send(7, finish=EndReason.STOP)
    assert len([message async for message in second]) == 1
    too_often = await keyed.refusal(bob)
    assert "2 requests per minute" in str(too_often.details())
    assert 0 < retry_after_s(too_often) <= 30

    other = keyed.generate()
    (await keyed.scheduler.next_job()).send(7, finish=EndReason.STOP)
    assert len([message async for message in other]) == 1


async def test_a_client_that_goes_away_gives_its_place_back(keyed: Keyed) -> None:
    stream = keyed.generate(keyed.single)
    job = await keyed.scheduler.next_job()
    assert (await keyed.refusal(keyed.single)).code() is EXHAUSTED
    stream.cancel()
    await job.cancel_reason()
    again = keyed.generate(keyed.single)
    (await keyed.scheduler.next_job()).send(7, finish=EndReason.STOP)
    assert len([message async for message in again]) == 1


async def test_a_stream_goes_on_when_its_key_is_revoked_and_no_other_begins(keyed: Keyed) -> None:
    stream = keyed.generate()
    job = await keyed.scheduler.next_job()
    job.send(7)
    assert list((await stream.read()).token_ids) == [7]
    remove_key(keyed.path, "alice")
    async with asyncio.timeout(SOON_S):
        call = None
        while call is None or await call.code() is grpc.StatusCode.OK:
            call = keyed.gateway.admin.GetStatus(admin_pb2.GetStatusRequest(), metadata=bearer(keyed.key))
    assert await call.code() is UNAUTHENTICATED
    job.send(8, finish=EndReason.LENGTH)
    assert list((await stream.read()).token_ids) == [8]


async def test_no_key_is_ever_logged(keyed: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        wrong = add_key(keyed.path.with_name("other.json"), "mallory")
        assert details(await keyed.refusal(wrong)) == []
        stream = keyed.generate()
        (await keyed.scheduler.next_job()).send(7, finish=EndReason.STOP)
        assert len([message async for message in stream]) == 1
    logged = "\n".join(record.getMessage() for record in caplog.records) + caplog.text
    assert keyed.key not in logged
    assert wrong not in logged
