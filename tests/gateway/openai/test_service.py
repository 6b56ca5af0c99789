"""OpenAiService for gRPC clients of its own, without a REST front."""

import json
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2
from google.rpc import error_details_pb2, status_pb2

from fastserve.v1 import openai_pb2, openai_pb2_grpc
from services.domain.errors import AdmissionFullError, InvalidFieldError
from services.domain.guide import Guide, GuideKind
from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.gateway.running_gateway import MODEL_NAME, Pair


def body(**fields: Any) -> httpbody_pb2.HttpBody:
    document = {"model": MODEL_NAME, "prompt": "the dog", "max_tokens": 2, **fields}
    return httpbody_pb2.HttpBody(content_type="application/json", data=json.dumps(document).encode())


def said(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of a refusal."""
    packed = next(value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin")
    for detail in status_pb2.Status.FromString(packed).details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    raise AssertionError("the status has no ErrorInfo")


async def test_a_stream_is_messages_of_events(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.script = lambda submission: [60] * submission.sampling.max_tokens
    stub = openai_pb2_grpc.OpenAiServiceStub(gateway.channel)
    messages = [message async for message in stub.CreateCompletion(body(stream=True), timeout=SOON_S)]
    assert [message.content_type for message in messages] == ["text/event-stream", *[""] * (len(messages) - 1)]
    assert all(message.data.startswith(b"data: ") for message in messages)
    assert messages[-1].data == b"data: [DONE]\n\n"
    (whole,) = [message async for message in stub.CreateCompletion(body(), timeout=SOON_S)]
    assert (whole.content_type, json.loads(whole.data)["object"]) == ("application/json", "text_completion")
    (models,) = [m async for m in stub.ListOpenAiModels(openai_pb2.ListOpenAiModelsRequest(), timeout=SOON_S)]
    assert json.loads(models.data)["data"][0]["id"] == MODEL_NAME


@pytest.mark.parametrize(
    ("fields", "code", "info"),
    [
        ({"max_tokens": 0}, grpc.StatusCode.INVALID_ARGUMENT, ("invalid_value", "invalid_request_error", "max_tokens")),
        ({"model": "x"}, grpc.StatusCode.NOT_FOUND, ("model_not_found", "invalid_request_error", "model")),
        (
            {"max_tokens": 4000},
            grpc.StatusCode.INVALID_ARGUMENT,
            ("context_length_exceeded", "invalid_request_error", "max_tokens"),
        ),
    ],
)
async def test_a_refusal_says_in_its_details_what_openai_calls_it(
    fields: dict[str, Any], code: grpc.StatusCode, info: tuple[str, str, str], pair: Pair
) -> None:
    stub = openai_pb2_grpc.OpenAiServiceStub(pair[0].channel)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.CreateCompletion(body(**fields), timeout=SOON_S).read()
    assert refused.value.code() is code
    told = said(refused.value)
    assert (told.reason, told.metadata["type"], told.metadata["param"], told.domain) == (*info, "openai")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {"properties": {"a": {"type": "x"}}}}, "guided_json.properties.a.type"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"guided_choice": ["x" * 140_000]}, "guided_choice"),
    ],
)
async def test_a_guide_that_cannot_be_used_is_refused_by_the_clients_own_path(
    fields: dict[str, Any], param: str, pair: Pair
) -> None:
    stub = openai_pb2_grpc.OpenAiServiceStub(pair[0].channel)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.CreateCompletion(body(**fields), timeout=SOON_S).read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (said(refused.value).metadata["param"], said(refused.value).reason) == (param, "invalid_value")


async def test_a_guide_goes_to_the_scheduler_with_its_job_and_makes_the_models_end_count(pair: Pair) -> None:
    gateway, scheduler = pair
    stub = openai_pb2_grpc.OpenAiServiceStub(gateway.channel)
    fields = {"guided_json": {"properties": {"z": {}, "a": {}}}, "ignore_eos": True}
    call = stub.CreateCompletion(body(**fields), timeout=SOON_S)
    job = await scheduler.next_job()
    assert job.submission.sampling.guide == Guide(GuideKind.JSON_SCHEMA, '{"properties":{"z":{},"a":{}}}')
    assert job.submission.sampling.stop_token_ids == (0,)
    job.refuse(InvalidFieldError("sampling.guide", "too many states"))
    with pytest.raises(grpc.aio.AioRpcError, match="too many states") as refused:
        await call.read()
    assert said(refused.value).metadata["param"] == "guided_json"


async def test_without_a_template_chat_says_what_is_missing(pair: Pair) -> None:
    """The model of this gateway has none."""
    chat = httpbody_pb2.HttpBody(
        data=json.dumps({"model": MODEL_NAME, "messages": [{"role": "user", "content": "a"}]}).encode()
    )
    with pytest.raises(grpc.aio.AioRpcError, match=r"chat_template\.jinja") as refused:
        await openai_pb2_grpc.OpenAiServiceStub(pair[0].channel).CreateChatCompletion(chat, timeout=SOON_S).read()
    assert said(refused.value).reason == "chat_template_missing"


async def test_a_full_scheduler_is_a_rate_limit(pair: Pair) -> None:
    gateway, scheduler = pair
    call = openai_pb2_grpc.OpenAiServiceStub(gateway.channel).CreateCompletion(body(), timeout=SOON_S)
    (await scheduler.next_job()).refuse(AdmissionFullError("2 jobs are queued", 2.0))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert said(refused.value).metadata["type"] == "rate_limit_error"
