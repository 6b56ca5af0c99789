"""`echo` with `logprobs`: the log probabilities of the prompt, as evaluation harnesses ask for them.

The requests of loglikelihood tasks are those that lm-eval's `local-completions` sends, and the answers are read as it
reads them.
"""

from typing import Any

import pytest
from tokenizers import Tokenizer

from services.domain.submission import Submission
from services.gateway.openai.answer_models import CompletionObject
from tests.gateway.fake_scheduler_for_gateway import prompt_score
from tests.gateway.running_gateway import MODEL_NAME
from tests.rest.running_front import Served, events, refusal

END = 0
"""The model's own end."""


def loglikelihood(context: list[int], continuation: list[int], max_tokens: int) -> dict[str, Any]:
    fields = {"temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234, "echo": True}
    return {"prompt": [context + continuation], **fields}


def parsed(answer: dict[str, Any], context_tokens: int, max_tokens: int) -> tuple[float, bool]:
    """The sum over the continuation, and whether greedy decoding would have given it; made tokens are left out."""
    logprobs = answer["choices"][0]["logprobs"]
    stop = len(logprobs["token_logprobs"]) - max_tokens
    values, tops = (logprobs[name][context_tokens:stop] for name in ("token_logprobs", "top_logprobs"))
    return sum(values), all(value == max(top.values()) for value, top in zip(values, tops, strict=True))


def ends_at_once(submission: Submission) -> list[int]:
    return [END]


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize(("continuation", "is_greedy"), [([62], True), ([62, 63], False)])
async def test_a_harness_finds_the_log_likelihood_of_a_continuation(
    max_tokens: int, continuation: list[int], is_greedy: bool, rest: Served
) -> None:
    """Also where the one token that is made ends the output: it is among the log probabilities."""
    rest.scheduler.script = ends_at_once
    answer = (await rest.complete(**loglikelihood([60, 61], continuation, max_tokens))).json()
    CompletionObject.model_validate(answer)
    prompt = [60, 61, *continuation]
    expected = sum(prompt_score(prompt, position, 1)[0] for position in range(2, len(prompt)))
    assert parsed(answer, 2, max_tokens) == (expected, is_greedy)
    logprobs = answer["choices"][0]["logprobs"]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert {len(values) for values in logprobs.values()} == {len(prompt) + max_tokens}
    assert answer["usage"]["completion_tokens"] == max_tokens


async def test_offsets_are_those_of_the_text(scripted: Served, tokenizer: Tokenizer) -> None:
    text = "the dog, naïve 🙂🙃 fox"
    answer = (await scripted.complete(prompt=text, echo=True, logprobs=2, max_tokens=3, ignore_eos=True)).json()
    choice = answer["choices"][0]
    ids = tokenizer.encode(text).ids
    assert choice["text"].startswith(text)
    for number in range(len(ids)):
        before = tokenizer.decode(ids[:number]).rstrip("\N{REPLACEMENT CHARACTER}")
        assert choice["logprobs"]["text_offset"][number] == len(before)
    assert choice["logprobs"]["text_offset"][len(ids)] == len(text)
    assert len(choice["logprobs"]["tokens"]) == len(ids) + 3


async def test_a_stream_tells_the_same(scripted: Served) -> None:
    fields: dict[str, Any] = {"prompt": [[60, 61, 62], [63]], "echo": True, "logprobs": 1, "max_tokens": 2, "seed": 3}
    whole = (await scripted.complete(**fields)).json()["choices"]
    chunks = events((await scripted.complete(stream=True, **fields)).text)
    for choice in whole:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in own) == choice["text"]
        told = [chunk["logprobs"] for chunk in own if chunk["logprobs"] is not None]
        for name, values in choice["logprobs"].items():
            assert [value for one in told for value in one[name]] == values


async def test_the_prompt_alone_is_echoed_without_log_probabilities_too(scripted: Served) -> None:
    answer = (await scripted.complete(prompt="the dog", echo=True, max_tokens=0)).json()
    assert answer["choices"] == [{"index": 0, "text": "the dog", "logprobs": None, "finish_reason": "length"}]
    chunks = events((await scripted.complete(prompt="the dog", echo=True, max_tokens=0, stream=True)).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "the dog"


async def test_refusals_name_the_clients_fields(scripted: Served) -> None:
    error = refusal(await scripted.complete(max_tokens=0), 400)
    assert error["param"] == "max_tokens"
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 0}
    assert refusal(await scripted.http.post("/v1/chat/completions", json=body), 400)["param"] == "max_tokens"
