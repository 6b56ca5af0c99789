"""The official client, unmodified: what it gets from the REST front, and that its own types accept it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from tokenizers import Tokenizer

from fastserve.v1 import inference_pb2
from services.domain.errors import AdmissionFullError, DeadlineError, NotReadyError
from services.gateway.openai.answer_models import ChatChunkObject, ChatObject, CompletionObject
from tests.gateway.running_gateway import MODEL_NAME
from tests.rest.running_front import MESSAGES, Served

SAMPLING: dict[str, Any] = {"seed": 4, "max_tokens": 6}


@pytest.fixture
async def client(scripted: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://{scripted.address}/v1", api_key="none", max_retries=0) as one:
        yield one


async def text_of_generate(rest: Served, prompt: Any, **fields: Any) -> str:
    """What Generate gives."""
    request = inference_pb2.GenerateRequest(sampling=inference_pb2.SamplingParams(**{**SAMPLING, **fields}))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return "".join(message.text for message in await rest.gateway.collect(request))


def accepted(answer: BaseModel, theirs: type[BaseModel], ours: type[BaseModel]) -> None:
    """Both kinds of models accept the answer strictly. The client's type of a completion serves its chunks too, in
    which `finish_reason` is null until the last one, as OpenAI has it; that alone is filled in.
    """
    document = answer.model_dump(exclude_unset=True)
    ours.model_validate(document)
    if theirs is Completion:
        for choice in document["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    theirs.model_validate(document)


async def test_models_are_listed_and_found(client: openai.AsyncOpenAI) -> None:
    (model,) = [model async for model in client.models.list()]
    Model.model_validate(model.model_dump())
    assert (model.id, model.object, model.owned_by) == (MODEL_NAME, "model", "fastserve")
    assert await client.models.retrieve(MODEL_NAME) == model


async def test_completions_are_those_of_generate(client: openai.AsyncOpenAI, scripted: Served) -> None:
    wanted = await text_of_generate(scripted, "the dog")
    whole = await client.completions.create(model=MODEL_NAME, prompt="the dog", **SAMPLING)
    accepted(whole, Completion, CompletionObject)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (wanted, "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == SAMPLING["max_tokens"]
    stream = await client.completions.create(model=MODEL_NAME, prompt="the dog", stream=True, **SAMPLING)
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        accepted(chunk, Completion, CompletionObject)
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted
    assert len(chunks) == SAMPLING["max_tokens"]


async def test_chat_is_generate_with_the_rendered_conversation(
    client: openai.AsyncOpenAI, scripted: Served, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.encode("user: the dog\nassistant:", add_special_tokens=False).ids
    wanted = await text_of_generate(scripted, prompt)
    fields: Any = {"model": MODEL_NAME, "messages": MESSAGES, "seed": 4, "max_completion_tokens": 6}
    whole = await client.chat.completions.create(**fields)
    accepted(whole, ChatCompletion, ChatObject)
    assert whole.choices[0].message.content == wanted
    chunks = [chunk async for chunk in await client.chat.completions.create(**fields, stream=True)]
    for chunk in chunks:
        accepted(chunk, ChatCompletionChunk, ChatChunkObject)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted


async def test_chat_without_a_limit_fills_the_context(client: openai.AsyncOpenAI, scripted: Served) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "dog"}]}]
    of_parts = await client.chat.completions.create(model=MODEL_NAME, messages=parts, seed=1)
    whole = await client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, seed=1)  # type: ignore[arg-type]
    assert whole.usage is not None
    assert whole.usage.total_tokens == 400, "the KV pool of the fake scheduler, which is smaller than the context"
    assert of_parts.choices[0].message == whole.choices[0].message


def test_the_synchronous_client_works_as_well(model: Path, tmp_path: Path) -> None:
    from tests.rest.conftest import drawn
    from tests.rest.running_front import served

    def ask(address: str) -> Iterator[str]:
        with openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client:
            yield client.models.list().data[0].id
            yield client.completions.create(model=MODEL_NAME, prompt="the dog", **SAMPLING).choices[0].text
            stream = client.completions.create(model=MODEL_NAME, prompt="the dog", stream=True, **SAMPLING)
            yield "".join(chunk.choices[0].text for chunk in stream)

    async def run() -> tuple[str, ...]:
        async with served(model, tmp_path) as rest:
            rest.scheduler.script = drawn
            return await asyncio.to_thread(lambda: tuple(ask(rest.address)))

    name, whole, streamed = asyncio.run(run())
    assert name == MODEL_NAME
    assert whole == streamed != ""


async def test_choices_are_numbered_prompt_by_prompt(client: openai.AsyncOpenAI, scripted: Served) -> None:
    prompts: Any = [[60, 61], [62, 63, 64]]
    answer = await client.completions.create(model=MODEL_NAME, prompt=prompts, n=2, echo=True, **SAMPLING)
    accepted(answer, Completion, CompletionObject)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    outputs = [await text_of_generate(scripted, prompt) for prompt in prompts]
    assert answer.choices[0].text.endswith(outputs[0])
    assert answer.choices[2].text.endswith(outputs[1])
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4 * 6)
    stream = await client.completions.create(model=MODEL_NAME, prompt=prompts, n=2, echo=True, stream=True, **SAMPLING)
    texts = ["", "", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"prompt": [[60], [60, 4000]]}, openai.BadRequestError, "prompt[1][1]"),
        ({"prompt": "x" * 9000}, openai.BadRequestError, "prompt"),
        ({"extra_body": {"no_such_field": 1}}, openai.BadRequestError, "no_such_field"),
    ],
)
async def test_refusals_are_the_clients_own_exceptions(
    fields: dict[str, Any], kind: type[openai.APIStatusError], param: str, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(kind) as refused:
        await client.completions.create(**{"model": MODEL_NAME, "prompt": "the dog", **fields})
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (AdmissionFullError("2 jobs are queued, the most there may be", 2.0), openai.RateLimitError, 429),
        (NotReadyError("no worker group is ready", 1.0), openai.InternalServerError, 503),
        (DeadlineError("the deadline passed"), openai.InternalServerError, 504),
    ],
)
async def test_what_the_scheduler_refuses_is_too(
    error: Any, kind: type[openai.APIStatusError], status: int, client: openai.AsyncOpenAI, scripted: Served
) -> None:
    scripted.scheduler.script = None
    asking = asyncio.ensure_future(client.completions.create(model=MODEL_NAME, prompt="the dog"))
    (await scripted.scheduler.next_job()).refuse(error)
    with pytest.raises(kind) as refused:
        await asking
    assert refused.value.status_code == status
    assert refused.value.response.headers.get("retry-after") == {429: "2", 503: "1", 504: None}[status]
    scripted.process.kill()
    await scripted.process.wait()
    with pytest.raises(openai.APIConnectionError):
        await client.models.list()
