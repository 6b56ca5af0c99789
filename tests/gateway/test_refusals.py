"""Bad input over real sockets: a typed status that names field and limit comes at once, and the gateway carries on."""

import asyncio
import math
from functools import partial
from typing import Any

import grpc
import pytest

from fastserve.v1 import inference_pb2 as api
from services.domain.generation import EndReason
from services.domain.submission import ServingLimits
from tests.builders.generate_requests import text_request
from tests.builders.status_details import details, retry_after_s, violated_field
from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.gateway.running_gateway import Pair

AT_ONCE_S = 5.0
"""Far less than tokenizing four megabytes takes, and enough for a busy machine."""


sampling = partial(text_request, "the dog")

REFUSED = [
    (sampling(max_tokens=0), "sampling.max_tokens"),
    (sampling(max_tokens=2**31 - 1), "sampling.max_tokens"),
    (sampling(min_tokens=-1), "sampling.min_tokens"),
    (sampling(temperature=-1), "sampling.temperature"),
    (sampling(temperature=math.nan), "sampling.temperature"),
    (sampling(top_p=0), "sampling.top_p"),
    (sampling(top_p=math.inf), "sampling.top_p"),
    (sampling(top_k=-2), "sampling.top_k"),
    (sampling(min_p=2), "sampling.min_p"),
    (sampling(presence_penalty=3), "sampling.presence_penalty"),
    (sampling(frequency_penalty=-3), "sampling.frequency_penalty"),
    (sampling(repetition_penalty=0), "sampling.repetition_penalty"),
    (sampling(stop=[""]), "sampling.stop[0]"),
    (sampling(stop_token_ids=[400]), "sampling.stop_token_ids[0]"),
    (sampling(logprobs=21), "sampling.logprobs"),
    (sampling(n=0), "sampling.n"),
    (sampling(logit_bias={400: 1.0}), "sampling.logit_bias[400]"),
    (sampling(logit_bias={1: math.nan}), "sampling.logit_bias[1]"),
    (api.GenerateRequest(), "prompt"),
    (api.GenerateRequest(text=""), "text"),
    (api.GenerateRequest(token_ids=api.TokenIds()), "token_ids.ids"),
    (api.GenerateRequest(token_ids=api.TokenIds(ids=[1, 2**32 - 1])), "token_ids.ids[1]"),
    (api.GenerateRequest(token_ids=api.TokenIds(ids=[1] * 512)), "token_ids.ids"),
    (api.GenerateRequest(text="dog", request_id="a/b"), "request_id"),
    (api.GenerateRequest(text="dog", resume_from_token=17), "resume_from_token"),
    (api.GenerateRequest(text="the lazy dog sleeps " * 300), "text"),
    (api.GenerateRequest(text="x" * 5_000_000), "text"),
    (api.GenerateRequest(text="x" * 4_000_000), "text"),
]


async def test_every_field_out_of_its_limits_is_refused_at_once(pair: Pair) -> None:
    gateway, scheduler = pair
    for request, field in REFUSED:
        async with asyncio.timeout(AT_ONCE_S):
            error = await gateway.refusal(request)
        assert violated_field(error) == field
    assert scheduler.waiting_jobs == 0
    collecting = asyncio.create_task(gateway.collect(sampling()))
    (await scheduler.next_job()).send(5, finish=EndReason.LENGTH)
    assert (await collecting)[-1].finish_reason == api.FINISH_REASON_LENGTH


async def test_the_description_names_the_limit(pair: Pair) -> None:
    error = await pair[0].refusal(sampling(top_p=1.5))
    (bad,) = details(error)
    assert "above 0 and at most 1" in bad.field_violations[0].description
    assert (error.details() or "").startswith("sampling.top_p")


async def test_another_model_is_not_found(pair: Pair) -> None:
    error = await pair[0].refusal(api.GenerateRequest(model="other", text="x"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "tiny" in (error.details() or "")


async def test_text_that_is_not_utf_8_is_an_invalid_argument(pair: Pair) -> None:
    gateway, _ = pair
    send_bytes: Any = gateway.channel.unary_stream("/fastserve.v1.InferenceService/Generate")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [message async for message in send_bytes(b"\x1a\x02\xff\xfe")]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_output_over_the_device_pool_is_refused_with_the_scheduler_s_limit(pair: Pair) -> None:
    gateway, scheduler = pair
    error = await gateway.refusal(sampling(max_tokens=399))
    assert violated_field(error) == "sampling.max_tokens"
    assert "400" in (error.details() or "")
    scheduler.set_limits(ServingLimits(ready=True, max_model_len=512, device_pool_tokens=4000))
    async with asyncio.timeout(SOON_S):
        while (await gateway.inference.ListModels(api.ListModelsRequest())).models[0].max_model_len != 512:
            pass
    collecting = asyncio.create_task(gateway.collect(sampling(max_tokens=399)))
    (await scheduler.next_job()).send(5, finish=EndReason.LENGTH)
    await collecting


async def test_before_a_worker_has_joined_a_bad_field_is_reported_and_a_good_request_must_wait(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.set_limits(ServingLimits(ready=False, max_model_len=0, device_pool_tokens=0))
    await gateway.until_health("readiness", "NOT_SERVING")
    assert violated_field(await gateway.refusal(sampling(top_p=2))) == "sampling.top_p"
    error = await gateway.refusal(sampling())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_after_s(error) > 0
