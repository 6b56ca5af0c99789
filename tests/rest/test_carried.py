"""The front carries: bytes and headers to the gateway, and the gateway's words about an error to the client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from google.api import httpbody_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.rest.fake_gateway_for_front import FakeGatewayForFront, serving_fronts
from tests.rest.running_front import refusal, running_front

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
KEY = {"authorization": "Bearer a-key"}
OTHERS = {
    "Grpc-Metadata-user": "x",
    "X-Forwarded-User": "x",
    "X-Forwarded-For": "10.0.0.1",
    "X-Forwarded-Host": "x",
    "Grpc-Timeout": "20S",
}
OK = status_pb2.Status()


def failed(code: int) -> status_pb2.Status:
    """A status whose details name the error as no API does."""
    status = status_pb2.Status(code=code, message="what went wrong")
    info = error_details_pb2.ErrorInfo(reason="some_code", domain="openai")
    info.metadata.update({"type": "some_type", "param": "a.b[0]"})
    packed = any_pb2.Any()
    packed.Pack(info)
    status.details.append(packed)
    return status


@asynccontextmanager
async def fronted(gateway: FakeGatewayForFront, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        serving_fronts(gateway) as address,
        running_front(address, folder) as (_, front),
        httpx2.AsyncClient(base_url=f"http://{front}", timeout=SOON_S, trust_env=False) as http,
    ):
        yield http


async def test_a_body_the_trace_and_the_authorization_reach_the_gateway_and_nothing_else_does(tmp_path: Path) -> None:
    gateway = FakeGatewayForFront(OK, (("application/json", b"{}"),))
    body = b'{"model":  "m", "n": 18446744073709551617, "n": null, "z": 1, "a": [1.0]}'
    async with fronted(gateway, tmp_path) as http:
        headers = {"Content-Type": "application/json", **TRACE, **KEY, **OTHERS}
        assert (await http.post("/v1/completions", content=body, headers=headers)).content == b"{}"
        await http.get("/fastserve/v1/models", headers={**TRACE, **KEY, **OTHERS})
    (call,) = gateway.calls
    assert httpbody_pb2.HttpBody.FromString(call.request).data == body
    assert dict(call.metadata) == {**TRACE, **KEY}
    assert 19 < call.deadline_in_s <= 20
    (metadata,) = gateway.metadata
    assert {**TRACE, **KEY}.items() <= metadata.items()
    assert "user" not in metadata
    assert "10.0.0.1" not in metadata["x-forwarded-for"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (code_pb2.INVALID_ARGUMENT, 400),
        (code_pb2.NOT_FOUND, 404),
        (code_pb2.RESOURCE_EXHAUSTED, 429),
        (code_pb2.INTERNAL, 500),
        (code_pb2.UNAVAILABLE, 503),
        (code_pb2.DEADLINE_EXCEEDED, 504),
    ],
)
async def test_an_error_is_called_what_the_gateway_calls_it(code: int, status: int, tmp_path: Path) -> None:
    async with fronted(FakeGatewayForFront(failed(code)), tmp_path) as http:
        told = refusal(await http.post("/v1/chat/completions", json={}), status)
    assert told == {"message": "what went wrong", "type": "some_type", "param": "a.b[0]", "code": "some_code"}


async def test_half_a_whole_answer_is_none(tmp_path: Path) -> None:
    gateway = FakeGatewayForFront(failed(code_pb2.INTERNAL), (("application/json", b'{"half":' + b" " * 9000),))
    async with fronted(gateway, tmp_path) as http:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.post("/v1/completions", json={})
