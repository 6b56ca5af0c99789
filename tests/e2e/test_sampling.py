"""Every sampling field, through the real services on the bundled model and its real tokenizer; and what the gateway
counts of it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import jsonschema
import openai
import pytest

from fastserve.v1 import inference_pb2 as api
from services.gateway.model_tokenizer import ModelTokenizer
from tests.builders.generate_requests import ids_request, text_request
from tests.builders.repository_paths import BUNDLED
from tests.builders.schemas import schema_of
from tests.builders.waits import wait_until
from tests.e2e.client import Client, client_of
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.guided_schemas import complaint, outputs_of
from tests.e2e.scraping import scrape
from tests.gateway.openai.tool_templates import CLOCK, WEATHER
from tests.gateway.running_gateway import running_gateway
from tests.rest.running_front import running_front

pytestmark = pytest.mark.timeout(240)

PROMPT = "def main(argv):\n    "
END_OF_TEXT = 1
TOKEN = 300
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
STOP, LENGTH = api.FINISH_REASON_STOP, api.FINISH_REASON_LENGTH


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", "4096", "--kv-host-tokens", "4096")
    with running_cluster(BUNDLED, tmp_path_factory.mktemp("cluster"), worker_flags=flags) as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with client_of(cluster.gateway_address) as one:
        yield one


async def ids_of(client: Client, **sampling: Any) -> list[int]:
    return (await client.one(text_request(PROMPT, **sampling))).token_ids


async def test_unset_max_tokens_are_16_and_usage_counts_the_prompt(client: Client) -> None:
    made = await client.one(ids_request([40, 41, 42], **GREEDY))
    assert (len(made.token_ids), made.finish_reason) == (16, LENGTH)
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (3, 16, 19)


async def test_greedy_is_the_same_every_time_and_so_is_every_cut_to_one_token(client: Client) -> None:
    greedy = await ids_of(client, **GREEDY)
    for sampling in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}):
        assert await ids_of(client, ignore_eos=True, **sampling) == greedy, sampling
    assert await ids_of(client, seed=9, **GREEDY) == greedy


async def test_a_seed_repeats_its_draws_and_others_give_others(client: Client) -> None:
    how: dict[str, Any] = {"ignore_eos": True, "temperature": 1.5}
    first, again, other, free, free_again = [
        await ids_of(client, **how, **seed) for seed in ({"seed": 7}, {"seed": 7}, {"seed": 8}, {}, {})
    ]
    assert first == again
    assert len({tuple(made) for made in (first, other, free, free_again)}) == 4


async def test_choices_differ_and_are_the_same_for_the_same_seed(client: Client) -> None:
    request = text_request(PROMPT, n=4, seed=3, temperature=1.5, ignore_eos=True, max_tokens=12)
    choices = await client.choices(request)
    assert len({tuple(choice.token_ids) for choice in choices}) == 4
    assert [choice.token_ids for choice in await client.choices(request)] == [one.token_ids for one in choices]
    (usage,) = [choice.usage for choice in choices if choice.usage is not None]
    assert usage.completion_tokens == 48
    assert {choice.finish_reason for choice in choices} == {LENGTH}


async def test_text_is_that_of_the_tokens_and_a_stop_string_across_a_token_border_cuts_it(client: Client) -> None:
    whole = await client.one(text_request(PROMPT, max_tokens=24, **GREEDY))
    pieces = [ModelTokenizer(BUNDLED).decode([token_id]) for token_id in whole.token_ids]
    text = "".join(pieces)
    assert whole.text == text
    borders = [pieces[at][-1:] + pieces[at + 1][:2] for at in range(6, len(pieces) - 1) if pieces[at + 1]]
    stop = next(border for border in borders if len(border) == 3)
    made = await client.one(text_request(PROMPT, max_tokens=24, stop=["never said", stop], **GREEDY))
    assert made.finish_reason == STOP
    assert made.text == text[: text.index(stop)]
    assert len(made.token_ids) < 24
    unstopped = await client.one(text_request(PROMPT, max_tokens=24, min_tokens=24, stop=[stop], **GREEDY))
    assert unstopped.text == text


async def test_logit_bias_forces_a_token_and_forbids_one(client: Client) -> None:
    assert await ids_of(client, logit_bias={TOKEN: 100.0}, max_tokens=5) == [TOKEN] * 5
    greedy = await ids_of(client, **GREEDY)
    assert greedy[0] not in await ids_of(client, logit_bias={greedy[0]: -100.0}, **GREEDY)


async def test_stop_tokens_end_the_output_and_are_told_without_text(client: Client) -> None:
    made = await client.one(text_request(PROMPT, logit_bias={TOKEN: 100.0}, stop_token_ids=[TOKEN], ignore_eos=True))
    assert (made.token_ids, made.text, made.finish_reason) == ([TOKEN], "", STOP)


async def test_the_end_of_text_ends_unless_it_is_ignored_or_too_early(client: Client) -> None:
    bias = {END_OF_TEXT: 100.0}
    ended = await client.one(text_request(PROMPT, logit_bias=bias))
    assert (ended.token_ids, ended.finish_reason) == ([END_OF_TEXT], STOP)
    late = await client.one(text_request(PROMPT, logit_bias=bias, min_tokens=5))
    assert (len(late.token_ids), late.token_ids[-1], late.finish_reason) == (6, END_OF_TEXT, STOP)
    assert END_OF_TEXT not in late.token_ids[:5]
    ignored = await client.one(text_request(PROMPT, logit_bias=bias, ignore_eos=True, max_tokens=7))
    assert (ignored.token_ids, ignored.finish_reason) == ([END_OF_TEXT] * 7, LENGTH)


async def test_a_prompts_tokens_are_as_probable_as_when_they_were_made(client: Client) -> None:
    prompt = [40, 41, 42]
    made = await client.one(ids_request(prompt, max_tokens=12, logprobs=2, temperature=1.2, seed=5, ignore_eos=True))
    scored = await client.one(ids_request([*prompt, *made.token_ids], max_tokens=0, prompt_logprobs=2))
    assert (scored.token_ids, scored.text, scored.finish_reason) == ([], "", LENGTH)
    assert [one.token_id for one in scored.prompt_logprobs] == [*prompt[1:], *made.token_ids]
    for again, once in zip(scored.prompt_logprobs[2:], made.logprobs, strict=True):
        assert again.logprob == pytest.approx(once.logprob, abs=1e-4)
        assert [one.logprob for one in again.top] == pytest.approx([one.logprob for one in once.top], abs=1e-4)
    assert scored.usage is not None
    assert (scored.usage.prompt_tokens, scored.usage.completion_tokens) == (15, 0)


async def test_logprobs_are_those_of_a_distribution_and_greedy_takes_the_best(client: Client) -> None:
    made = await client.one(text_request(PROMPT, logprobs=20, **GREEDY))
    assert [entry.token_id for entry in made.logprobs] == made.token_ids
    for entry in made.logprobs:
        logprobs = [one.logprob for one in entry.top]
        assert len(logprobs) == 20
        assert logprobs == sorted(logprobs, reverse=True)
        assert 0.2 < sum(math.exp(one) for one in logprobs) < 1.0001
        assert (entry.token_id, entry.logprob) == (entry.top[0].token_id, entry.top[0].logprob)
    only_chosen = await client.one(text_request(PROMPT, logprobs=0, seed=5))
    assert len(only_chosen.logprobs) == len(only_chosen.token_ids)
    assert all(entry.logprob <= 0 and not entry.top for entry in only_chosen.logprobs)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
async def test_a_penalty_makes_repetition_rarer(client: Client, penalty: str) -> None:
    prompt = [400, 401] * 10
    plain = await client.one(ids_request(prompt, max_tokens=60, **GREEDY))
    penalised = await client.one(ids_request(prompt, max_tokens=60, **GREEDY, **{penalty: 2.0}))
    assert len(Counter(penalised.token_ids)) > len(Counter(plain.token_ids))


async def test_every_finished_output_is_one_that_an_independent_validator_accepts(client: Client) -> None:
    """500 schemas: `python -m tests.e2e.guided_schemas`."""
    schemas = [schema_of(number) for number in range(24)]
    outputs = await outputs_of(client, schemas)
    pairs = [(schema, text) for schema, text in zip(schemas, outputs, strict=True) if text is not None]
    assert len(pairs) >= 12
    assert [(schema, text, said) for schema, text in pairs if (said := complaint(schema, text))] == []


@pytest.mark.parametrize(
    ("guide", "whole"),
    [
        (api.Guide(regex="[a-z]{3}-[0-9]{4}"), "[a-z]{3}-[0-9]{4}"),
        (api.Guide(choice=api.GuideChoices(texts=["yes", "no", "may be"])), "yes|no|may be"),
        (api.Guide(grammar='start: "(" start ")" | "x"'), r"\(*x\)*"),
    ],
    ids=["regex", "choice", "grammar"],
)
async def test_a_complete_guide_ends_the_output_whatever_min_tokens_and_ignore_eos_say(
    guide: api.Guide, whole: str, client: Client
) -> None:
    request = text_request(PROMPT, max_tokens=60, min_tokens=60, ignore_eos=True, temperature=0.7, seed=3, guide=guide)
    made = await client.one(request)
    assert made.finish_reason == STOP
    assert re.fullmatch(whole, made.text)


async def test_a_guide_that_cannot_be_used_is_refused_before_its_job_is_admitted(
    client: Client, cluster: Cluster
) -> None:
    admitted = cluster.status().counters.jobs_admitted
    schema = json.dumps({"type": "object", "properties": {"a": {"not": {}}}})
    refused = await client.refusal(text_request(PROMPT, guide=api.Guide(json_schema=schema)))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "sampling.guide.json_schema.properties.a.not: keyword 'not' is not supported" in (refused.details() or "")
    assert cluster.status().counters.jobs_admitted == admitted


async def test_tool_calls_that_are_required_are_valid_streamed_and_whole(cluster: Cluster, tmp_path: Path) -> None:
    """Through a gateway that has the cluster's model, and the official client."""
    async with (
        running_gateway(BUNDLED, cluster.scheduler_address, served_model_name="tiny") as gateway,
        running_front(gateway.address, tmp_path) as (_, address),
        openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as official,
    ):
        how: Any = {"messages": [{"role": "user", "content": "windy?"}], "tools": [WEATHER, CLOCK], "max_tokens": 200}
        choices: list[Any] = ["required", {"type": "function", "function": {"name": "weather"}}]
        for seed, choice in enumerate(choices):
            fields = {**how, "model": "tiny", "tool_choice": choice, "seed": seed}
            (whole,) = (await official.chat.completions.create(**fields)).choices
            assert whole.finish_reason == "tool_calls"
            assert whole.message.content is None
            (call,) = whole.message.tool_calls
            assert call.function.name == "weather" or choice == "required"
            if call.function.name == "weather":
                jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
            stream = await official.chat.completions.create(**fields, stream=True)
            deltas = [part async for chunk in stream for part in chunk.choices[0].delta.tool_calls or []]
            assert deltas[0].function.name == call.function.name
            assert "".join(part.function.arguments for part in deltas) == call.function.arguments
            assert len(deltas) > 2 or call.function.arguments == "{}"


async def test_a_named_request_is_resumed_from_a_token(client: Client) -> None:
    sampling = api.SamplingParams(max_tokens=12, ignore_eos=True)
    whole = await client.one(api.GenerateRequest(text=PROMPT, request_id="resumed", sampling=sampling))
    request = api.GenerateRequest(text=PROMPT, request_id="resumed", sampling=sampling, resume_from_token=5)
    messages = [message async for message in client.open(request)]
    assert messages[0].first_token_number == 5
    assert [token_id for message in messages for token_id in message.token_ids] == whole.token_ids[5:]


# --- metrics ---------------------------------------------------------------------------------------------------------


async def test_metrics_count_known_traffic(client: Client, cluster: Cluster) -> None:
    wait_until(cluster.is_idle, "nothing else runs")
    before = scrape(cluster)
    await client.all(ids_request(range(20, 25), max_tokens=7, **GREEDY) for _ in range(3))
    await client.choices(ids_request(range(20, 30), max_tokens=4, ignore_eos=True, n=2))
    await client.one(ids_request(range(20, 26), logit_bias={END_OF_TEXT: 100.0}))
    await client.refusal(ids_request([20], top_p=7.0))
    stream = client.open(ids_request(range(20, 28), max_tokens=2000, ignore_eos=True))
    await anext(aiter(stream))
    wait_until(lambda: scrape(cluster).sum("num_requests_running") == 1, "it runs")
    stream.cancel()
    aborted = before.sum("request_success_total", finished_reason="abort") + 1
    wait_until(lambda: scrape(cluster).sum("request_success_total", finished_reason="abort") == aborted, "ended")
    wait_until(cluster.is_idle, "every block free")
    after = scrape(cluster)

    def more(name: str, **labels: str) -> float:
        return after.sum(name, **labels) - before.sum(name, **labels)

    assert more("request_success_total", finished_reason="length") == 5
    assert more("request_success_total", finished_reason="stop") == 1
    assert more("request_success_total", finished_reason="abort") == 1
    assert more("prompt_tokens_total") == 3 * 5 + 10 + 6 + 8
    assert more("generation_tokens_total") - more("request_generation_tokens_sum") == 0
    assert more("generation_tokens_total") > 3 * 7 + 2 * 4 + 1
    assert more("e2e_request_latency_seconds_count") == 7
    assert more("time_to_first_token_seconds_count") == 7
    assert more("inter_token_latency_seconds_count") == more("generation_tokens_total") - 7
    assert more("iteration_tokens_count") > 0
    for gauge in ("num_requests_running", "num_requests_waiting", "num_requests_swapped", "kv_cache_usage_perc"):
        assert after.sum(gauge) == 0
    assert after.sum("jobs") == 0
