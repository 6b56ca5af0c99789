"""What a client of any FastServe server may rely on, through real sockets: statuses, limits, health, reflection, an
orderly end.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fastserve.v1 import inference_pb2, inference_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from services.domain.errors import (
    AddressInUseError,
    AdmissionFullError,
    InvalidFieldError,
    PeerFailedError,
    SupersededError,
    UnknownModelError,
)
from services.runtime.backoff import Backoff
from services.runtime.channel import CHANNEL_OPTIONS, CLIENT_OPTIONS, CLIENT_PINGS, Options, open_channel
from services.runtime.error_statuses import from_grpc
from services.runtime.server import RpcServer, server_options
from tests.builders.channels import patient_channel
from tests.runtime.ipv6 import has_ipv6

INFERENCE = "fastserve.v1.InferenceService"
SCHEDULER = "fastserve.v1.SchedulerService"
SOON_S = 60.0


class FakeInferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Fails as the text of the prompt says."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        try:
            yield inference_pb2.GenerateResponse(text=f"{len(request.text)}")
            if request.text == "full":
                raise AdmissionFullError("20000 jobs are queued", 3.0)
            if request.text == "bug":
                raise KeyError("a secret of the server")
            if request.text == "abort":
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, "said by the handler itself")
            if request.text in ("wait", "rude"):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if request.text == "rude":
                raise UnknownModelError("said to nobody") from None
            raise
        finally:
            self.closed.set()

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        raise UnknownModelError("there is none")


class FakeSchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Answers every result by a plan of the same number; a hello is superseded."""

    async def GatewayLink(
        self, requests: AsyncIterator[scheduler_pb2.GatewayLinkRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.GatewayLinkResponse]:
        async for _ in requests:
            yield scheduler_pb2.GatewayLinkResponse()

    async def WorkerLink(
        self, requests: AsyncIterator[scheduler_pb2.WorkerLinkRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.WorkerLinkResponse]:
        async for request in requests:
            if request.HasField("hello"):
                raise SupersededError("a newer worker took the group")
            plans = [scheduler_pb2.Plan(plan_number=result.plan_number) for result in request.results.results]
            yield scheduler_pb2.WorkerLinkResponse(plans=scheduler_pb2.Plans(plans=plans))


class RunningServer:
    """A running server and a channel to it."""

    def __init__(self, server: RpcServer, servicer: FakeInferenceService, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.servicer = servicer
        self.channel = channel
        self.inference = inference_pb2_grpc.InferenceServiceStub(channel)
        self.scheduler = scheduler_pb2_grpc.SchedulerServiceStub(channel)

    async def generate(self, text: str) -> list[str]:
        call: Any = self.inference.Generate(inference_pb2.GenerateRequest(text=text), timeout=SOON_S)
        return [message.text async for message in call]


@asynccontextmanager
async def running(of_server: Options | None = None, of_channel: Options | None = None) -> AsyncIterator[RunningServer]:
    servicer = FakeInferenceService()

    def register(server: grpc.aio.Server) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(FakeSchedulerService(), server)

    server = RpcServer("127.0.0.1:0", [INFERENCE, SCHEDULER], register, of_server)
    await server.start()
    channel_of_test = (
        patient_channel(server.address) if of_channel is None else open_channel(server.address, of_channel)
    )
    async with channel_of_test as channel:
        yield RunningServer(server, servicer, channel)
    await server.stop(grace_s=0)


async def refusal(call: Callable[[], Awaitable[Any]]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call()
    return caught.value


async def test_a_typed_error_reaches_the_client_with_its_details() -> None:
    async with running() as fixture:
        error = from_grpc(await refusal(lambda: fixture.generate("full")))
        assert isinstance(error, AdmissionFullError)
        assert (str(error), error.retry_after_s) == ("20000 jobs are queued", 3.0)
        unary: Any = fixture.inference.ListModels
        not_found = await refusal(lambda: unary(inference_pb2.ListModelsRequest(), timeout=SOON_S))
        assert isinstance(from_grpc(not_found), UnknownModelError)


async def test_a_bug_is_internal_logged_once_and_tells_the_client_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as fixture:
        with caplog.at_level(logging.ERROR):
            error = await refusal(lambda: fixture.generate("bug"))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(error.details())
        assert isinstance(from_grpc(error), PeerFailedError)
        assert [record.name for record in caplog.records] == ["services.runtime.server"]
        assert await fixture.generate("fine") == ["4"]


async def test_a_status_that_a_handler_set_itself_stays() -> None:
    async with running() as fixture:
        assert (await refusal(lambda: fixture.generate("abort"))).code() is grpc.StatusCode.OUT_OF_RANGE


async def test_invalid_utf8_is_an_invalid_argument_and_the_server_goes_on() -> None:
    async with running() as fixture:
        generate: Any = fixture.channel.unary_stream(f"/{INFERENCE}/Generate")

        async def send(data: bytes) -> list[bytes]:
            return [message async for message in generate(data, timeout=SOON_S)]

        for data in (b"\x1a\x02\xff\xfe", b"\x1a\x7f", b"\xff\xff\xff"):
            error = from_grpc(await refusal(lambda data=data: send(data)))  # type: ignore[misc]
            assert isinstance(error, InvalidFieldError)
            assert error.field == "request"
        assert await fixture.generate("fine") == ["4"]


async def test_a_broken_message_in_a_stream_ends_it_as_an_invalid_argument() -> None:
    async with running() as fixture:
        link: Any = fixture.channel.stream_stream(f"/{SCHEDULER}/WorkerLink")
        call = link(timeout=SOON_S)
        results = scheduler_pb2.IterationResults(results=[scheduler_pb2.IterationResult(plan_number=7)])
        good = scheduler_pb2.WorkerLinkRequest(results=results)
        await call.write(good.SerializeToString())
        answer = scheduler_pb2.WorkerLinkResponse.FromString(await call.read())
        assert answer.plans.plans[0].plan_number == 7
        await call.write(b"\xff\xff\xff")
        assert isinstance(from_grpc(await refusal(call.read)), InvalidFieldError)


async def test_an_error_in_a_stream_both_ways_reaches_the_other_side() -> None:
    async with running() as fixture:
        call: Any = fixture.scheduler.WorkerLink(timeout=SOON_S)
        await call.write(scheduler_pb2.WorkerLinkRequest(hello=scheduler_pb2.WorkerHello(last_epoch=1)))
        assert isinstance(from_grpc(await refusal(call.read)), SupersededError)


async def test_a_message_of_five_megabytes_reaches_the_handler() -> None:
    async with running() as fixture:
        assert await fixture.generate("x" * 5_000_000) == ["5000000"]


async def test_a_message_beyond_the_limit_is_refused_and_the_server_goes_on() -> None:
    async with running() as fixture:
        options = (("grpc.max_send_message_length", -1),)
        async with grpc.aio.insecure_channel(fixture.server.address, options=options) as wide:
            stub = inference_pb2_grpc.InferenceServiceStub(wide)
            request = inference_pb2.GenerateRequest(text="x" * 17_000_000)

            async def send() -> None:
                call: Any = stub.Generate(request, timeout=SOON_S)
                async for _ in call:
                    pass

            assert (await refusal(send)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await fixture.generate("fine") == ["4"]


async def test_a_handler_is_ended_when_its_client_goes() -> None:
    async with running() as fixture:
        call: Any = fixture.inference.Generate(inference_pb2.GenerateRequest(text="wait"), timeout=SOON_S)
        assert (await call.read()).text == "4"
        assert not fixture.servicer.closed.is_set()
        call.cancel()
        await asyncio.wait_for(fixture.servicer.closed.wait(), SOON_S)


async def test_an_error_that_nobody_is_left_to_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as fixture:
        call: Any = fixture.inference.Generate(inference_pb2.GenerateRequest(text="rude"), timeout=SOON_S)
        await call.read()
        call.cancel()
        await asyncio.wait_for(fixture.servicer.closed.wait(), SOON_S)
        assert await fixture.generate("fine") == ["4"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_hears_nothing_for_many_pings_is_not_cut() -> None:
    """A server with gRPC's default limit would treat the third ping as abuse."""
    async with running() as fixture, running(server_options(least_ping_interval_s=500.0)) as strict:
        calls: list[Any] = [one.scheduler.GatewayLink(timeout=SOON_S) for one in (fixture, strict)]
        for call in calls:
            await call.write(scheduler_pb2.GatewayLinkRequest())
            assert await call.read() == scheduler_pb2.GatewayLinkResponse()
        patient, cut = calls
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await cut.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "Too many pings"
        await patient.write(scheduler_pb2.GatewayLinkRequest())
        assert await patient.read() == scheduler_pb2.GatewayLinkResponse()


@pytest.mark.parametrize("of_server", [server_options(), server_options(CLIENT_PINGS)])
def test_every_server_takes_pings_as_often_as_any_client_sends_them(of_server: Options) -> None:
    least_ms = dict(of_server)["grpc.http2.min_ping_interval_without_data_ms"]
    for of_client in (CHANNEL_OPTIONS, CLIENT_OPTIONS):
        assert least_ms < dict(of_client)["grpc.keepalive_time_ms"]


async def test_health_tells_liveness_from_readiness() -> None:
    async with running() as fixture:
        stub: Any = health_pb2_grpc.HealthStub(fixture.channel)
        states = health_pb2.HealthCheckResponse

        async def check(name: str) -> int:
            call: Any = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=SOON_S)
            status: int = (await call).status
            return status

        assert [await check(name) for name in ("", "liveness")] == [states.SERVING] * 2
        for ready, state in ((False, states.NOT_SERVING), (True, states.SERVING), (False, states.NOT_SERVING)):
            await fixture.server.set_ready(ready)
            assert [await check(name) for name in ("readiness", INFERENCE, SCHEDULER)] == [state] * 3


async def test_reflection_names_the_services() -> None:
    async with running() as fixture:
        make_stub: Any = reflection_pb2_grpc.ServerReflectionStub
        call = make_stub(fixture.channel).ServerReflectionInfo(timeout=SOON_S)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert {INFERENCE, SCHEDULER, "grpc.health.v1.Health"} <= names
        await call.done_writing()


async def test_a_port_in_use_is_a_typed_error_of_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match=f"{address}: the port is in use"):
            await RpcServer(address, [], lambda server: None).start()


async def test_two_servers_never_share_a_port() -> None:
    async with running() as fixture:
        with pytest.raises(AddressInUseError):
            await RpcServer(fixture.server.address, [], lambda server: None).start()


@pytest.mark.parametrize("address", ["203.0.113.7:0", "[2001:db8::7]:0", "no-such-host.invalid:0"])
async def test_a_host_that_is_not_here_is_a_typed_error_that_does_not_blame_the_port(address: str) -> None:
    with pytest.raises(AddressInUseError, match="can't listen on") as caught:
        await RpcServer(address, [], lambda server: None).start()
    assert "in use" not in str(caught.value)


async def test_what_only_grpc_refuses_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RpcServer("127.0.0.1:0", [], lambda server: None)

    def refuse(address: str) -> int:
        raise RuntimeError("in the words of gRPC")

    monkeypatch.setattr(server._server, "add_insecure_port", refuse)
    with pytest.raises(AddressInUseError, match="in the words of gRPC"):
        await server.start()


async def test_a_server_listens_on_ipv6_where_the_machine_has_it() -> None:
    server = RpcServer("[::1]:0", [], lambda server: None)
    if not has_ipv6():
        with pytest.raises(AddressInUseError, match=r"can't listen on \[::1\]:0: "):
            await server.start()
        return
    await server.start()
    try:
        assert server.address.startswith("[::1]:")
        async with patient_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=SOON_S)
    finally:
        await server.stop(0)


def test_pauses_between_attempts_to_dial_grow_to_a_limit_and_begin_anew() -> None:
    backoff = Backoff(first_s=0.1, most_s=0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next_s() == 0.1
