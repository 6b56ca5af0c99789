"""Bad requests, through the real services: a typed status within a second that says what is wrong, and the server goes
on.
"""

import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fastserve.v1 import inference_pb2 as api
from tests.builders.generate_requests import ids_request, text_request
from tests.builders.model_folders import tiny_model_folder
from tests.builders.repository_paths import BUNDLED
from tests.builders.status_details import retry_after_s, violated_field
from tests.builders.waits import wait_until
from tests.e2e.client import Client, client_of
from tests.e2e.cluster import Cluster, running_cluster

POOL_TOKENS = 256
VOCABULARY = 2048
CONTEXT = 2048
MOST_JOBS = 4
AT_ONCE_S = 1.0
TRIES = 10
"""The machine may be busy with something else for a second, but not every time."""
BIG_BYTES = 5_000_000

ABSURD = [
    ("max_tokens", (0, -1, -(2**31), 2**31 - 1)),
    ("min_tokens", (-1, 17, 2**31 - 1)),
    ("temperature", (-0.1, 100.5, math.nan, math.inf, -math.inf)),
    ("top_p", (0.0, -1.0, 1.01, math.nan, math.inf)),
    ("top_k", (-2, -(2**31))),
    ("min_p", (-0.01, 1.01, math.nan, math.inf)),
    ("presence_penalty", (-2.1, 2.1, math.nan, -math.inf)),
    ("frequency_penalty", (-2.1, 2.1, math.nan, math.inf)),
    ("repetition_penalty", (0.0, 1e-45, -1.0, 10.5, math.nan, math.inf)),
    ("logprobs", (-1, 21, 2**31 - 1)),
    ("n", (0, -1, 17, 2**31 - 1)),
]

ABSURD_LISTS: list[tuple[dict[str, Any], str]] = [
    ({"stop": [""]}, "sampling.stop[0]"),
    ({"stop": ["ok", "x" * 257]}, "sampling.stop[1]"),
    ({"stop": ["x"] * 17}, "sampling.stop"),
    ({"stop_token_ids": [VOCABULARY]}, "sampling.stop_token_ids[0]"),
    ({"stop_token_ids": [1, 2**32 - 1]}, "sampling.stop_token_ids[1]"),
    ({"stop_token_ids": [1] * 65}, "sampling.stop_token_ids"),
    ({"logit_bias": {VOCABULARY: 1.0}}, f"sampling.logit_bias[{VOCABULARY}]"),
    ({"logit_bias": {7: 100.5}}, "sampling.logit_bias[7]"),
    ({"logit_bias": {7: math.nan}}, "sampling.logit_bias[7]"),
    ({"logit_bias": {7: -math.inf}}, "sampling.logit_bias[7]"),
    ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "sampling.logit_bias"),
]

BAD_PROMPTS = {
    "no prompt": (api.GenerateRequest(), "prompt"),
    "empty text": (text_request(""), "text"),
    "no ids": (ids_request([]), "token_ids.ids"),
    "ids over the context": (ids_request([20] * CONTEXT), "token_ids.ids"),
    "text over the context": (text_request("def main(argv): " * 1500), "text"),
    "output over the context": (text_request("x", max_tokens=CONTEXT), "sampling.max_tokens"),
    "output over the pool": (text_request("x", max_tokens=POOL_TOKENS), "sampling.max_tokens"),
    "prompt and output over the pool": (ids_request([20] * (POOL_TOKENS - 9), max_tokens=10), "sampling.max_tokens"),
    "an id out of the vocabulary": (ids_request([20, VOCABULARY, 21]), "token_ids.ids[1]"),
    "the largest id": (ids_request([2**32 - 1]), "token_ids.ids[0]"),
    "5 MB of one letter": (text_request("x" * BIG_BYTES), "text"),
    "5 MB of words": (text_request("the lazy dog " * (BIG_BYTES // 13)), "text"),
    "ids in millions": (ids_request([20] * 2_000_000), "token_ids.ids"),
    "a request id with a space": (api.GenerateRequest(text="x", request_id="a b"), "request_id"),
    "a resumption after the end": (api.GenerateRequest(text="x", resume_from_token=17), "resume_from_token"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "1024")
    folder = tmp_path_factory.mktemp("cluster")
    queue = ("--max-queued-jobs", str(MOST_JOBS))
    with running_cluster(BUNDLED, folder, worker_flags=flags, scheduler_flags=queue) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """After each test a usual request is served and nothing is left of the refused ones."""
    async with client_of(cluster.gateway_address) as one:
        yield one
        good = await one.one(text_request("def main", max_tokens=4, ignore_eos=True))
    assert len(good.token_ids) == 4
    wait_until(cluster.is_idle, "every block free")


async def refused_at_once(client: Client, request: api.GenerateRequest) -> grpc.aio.AioRpcError:
    """The refusal of a request, which one of a few tries must bring within a second."""
    fastest_s = math.inf
    for _ in range(TRIES):
        started_s = time.monotonic()
        error = await client.refusal(request)
        fastest_s = min(fastest_s, time.monotonic() - started_s)
        if fastest_s < AT_ONCE_S:
            return error
    raise AssertionError(f"refused after {fastest_s:.1f} s")


@pytest.mark.parametrize(("name", "values"), ABSURD)
async def test_an_absurd_sampling_value_is_refused_with_its_field(
    client: Client, name: str, values: tuple[float, ...]
) -> None:
    for value in values:
        error = await refused_at_once(client, text_request("def main", **{name: value}))
        field = "sampling.max_tokens" if name == "max_tokens" else f"sampling.{name}"
        assert violated_field(error) == field, value


async def test_absurd_lists_and_maps_are_refused_with_the_entry(client: Client) -> None:
    for sampling, field in ABSURD_LISTS:
        error = await refused_at_once(client, text_request("def main", **sampling))
        assert violated_field(error) == field


@pytest.mark.parametrize("name", BAD_PROMPTS)
async def test_a_bad_prompt_is_refused_with_its_field(client: Client, name: str) -> None:
    request, field = BAD_PROMPTS[name]
    assert violated_field(await refused_at_once(client, request)) == field


async def test_an_unknown_model_is_not_found_and_the_served_one_is_named(client: Client) -> None:
    error = await refused_at_once(client, api.GenerateRequest(model="gpt", text="x"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "tiny" in (error.details() or "")


@pytest.mark.parametrize("data", [b"\x1a\x02\xff\xfe", b"\x0a\x01\xc3\x1a\x01x", b"\xff\xff\xff", b"\x1a\x7fshort"])
async def test_bytes_that_are_no_request_are_an_invalid_argument(client: Client, data: bytes) -> None:
    send_bytes: Any = client.channel.unary_stream("/fastserve.v1.InferenceService/Generate")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [message async for message in send_bytes(data, timeout=60)]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_id_used_again_joins_with_the_same_body_and_is_refused_with_another(client: Client) -> None:
    def request(max_tokens: int) -> api.GenerateRequest:
        sampling = api.SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=1.0)
        return api.GenerateRequest(text="def main", request_id="once", sampling=sampling)

    first = await client.one(request(8))
    error = await refused_at_once(client, request(9))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "once" in (error.details() or "")
    assert (await client.one(request(8))).token_ids == first.token_ids


async def test_a_request_id_in_use_is_refused_with_another_body_and_the_stream_goes_on(client: Client) -> None:
    sampling = api.SamplingParams(max_tokens=200, ignore_eos=True)
    stream = aiter(client.open(api.GenerateRequest(text="def main", request_id="in-use", sampling=sampling)))
    first = await anext(stream)
    error = await refused_at_once(client, api.GenerateRequest(text="other", request_id="in-use", sampling=sampling))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    rest = [token_id async for message in stream for token_id in message.token_ids]
    assert len(first.token_ids) + len(rest) == 200


async def test_more_jobs_than_admission_allows_are_told_when_to_come_again(client: Client) -> None:
    # Each fills the pool, so that none ends while the others arrive.
    request = text_request("def main", max_tokens=200, ignore_eos=True)
    ends = await asyncio.gather(*(client.one(request) for _ in range(4 * MOST_JOBS)), return_exceptions=True)
    refused = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
    served = [end for end in ends if not isinstance(end, BaseException)]
    assert len(refused) + len(served) == len(ends)
    assert refused
    assert all(error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for error in refused)
    assert all(retry_after_s(error) > 0 for error in refused)
    assert len(served) >= MOST_JOBS
    assert all(len(choice.token_ids) == 200 for choice in served)


async def test_more_choices_than_admission_allows_end_the_whole_request(client: Client) -> None:
    error = await client.refusal(text_request("def main", max_tokens=200, ignore_eos=True, n=2 * MOST_JOBS))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_after_s(error) > 0


def folder_with_other_weights(folder: Path) -> Path:
    """The served model but for one byte of its last weight."""
    shutil.copytree(BUNDLED, folder)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    return folder


async def test_workers_that_differ_are_refused_by_name_while_the_cluster_serves(
    client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    joins = cluster.status().groups[0].worker_joins
    other_shape = tiny_model_folder(tmp_path)
    other_weights = folder_with_other_weights(tmp_path / "other-weights")
    aliens = [cluster.start_other_worker("--model", str(folder)) for folder in (other_weights, other_shape)]
    while any(alien.popen.poll() is None for alien in aliens):
        served = await client.one(text_request("def main", ignore_eos=True))
        assert len(served.token_ids) == 16
    for alien in aliens:
        assert alien.popen.returncode == 1
        assert alien.log().splitlines()[-1].startswith("fastserve worker: model_fingerprint: is ")
    assert cluster.status().groups[0].worker_joins == joins
