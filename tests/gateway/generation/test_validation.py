"""Each limit in inference.proto: a value just within it is accepted, one just beyond it is refused, naming field and
limit.
"""

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest

from services.domain.errors import InvalidFieldError, UnknownModelError
from services.domain.generation import GenerateRequest, SamplingRequest
from services.domain.job_sampling import JobSampling
from services.domain.submission import ServingLimits
from services.gateway.generation.sampling_defaults import resolve, seed_of
from services.gateway.generation.validation import MOST_TEXT_BYTES, ModelLimits, check_prompt, check_request

MODEL = ModelLimits(vocabulary_size=400, max_model_len=512, eos_token_ids=(0, 3))
LIMITS = ServingLimits(ready=True, max_model_len=256, device_pool_tokens=200)
GOOD = GenerateRequest("tiny", None, "hello", None, SamplingRequest(), None)

LARGEST_INT32 = 2**31 - 1
REFUSED_SAMPLING: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": -1, "prompt_logprobs": 0}, "max_tokens", "at least 1"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "from 0 to 20"),
    ({"max_tokens": -5}, "max_tokens", "at least 1"),
    ({"min_tokens": -1}, "min_tokens", "0 to max_tokens (16)"),
    ({"min_tokens": 17}, "min_tokens", "0 to max_tokens (16)"),
    ({"min_tokens": 4, "max_tokens": 3}, "min_tokens", "0 to max_tokens (3)"),
    ({"temperature": -0.01}, "temperature", "from 0 to 100"),
    ({"temperature": 100.5}, "temperature", "from 0 to 100"),
    ({"top_p": 0.0}, "top_p", "above 0 and at most 1"),
    ({"top_p": 1.01}, "top_p", "above 0 and at most 1"),
    ({"top_k": -2}, "top_k", "at least -1"),
    ({"min_p": -0.1}, "min_p", "from 0 to 1"),
    ({"min_p": 1.1}, "min_p", "from 0 to 1"),
    ({"presence_penalty": 2.1}, "presence_penalty", "from -2 to 2"),
    ({"presence_penalty": -2.1}, "presence_penalty", "from -2 to 2"),
    ({"frequency_penalty": 2.1}, "frequency_penalty", "from -2 to 2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "from -2 to 2"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "from 0.01 to 10"),
    ({"repetition_penalty": 1e-45}, "repetition_penalty", "from 0.01 to 10"),
    ({"repetition_penalty": 0.0099}, "repetition_penalty", "from 0.01 to 10"),
    ({"repetition_penalty": 10.1}, "repetition_penalty", "from 0.01 to 10"),
    ({"stop": ("x",) * 17}, "stop", "at most 16"),
    ({"stop": ("x", "")}, "stop[1]", "from 1 to 256"),
    ({"stop": ("y" * 257,)}, "stop[0]", "from 1 to 256"),
    ({"stop_token_ids": (1,) * 65}, "stop_token_ids", "at most 64"),
    ({"stop_token_ids": (1, 400)}, "stop_token_ids[1]", "below 400"),
    ({"logprobs": -1}, "logprobs", "from 0 to 20"),
    ({"logprobs": 21}, "logprobs", "from 0 to 20"),
    ({"n": 0}, "n", "from 1 to 16"),
    ({"n": 17}, "n", "from 1 to 16"),
    ({"logit_bias": {400: 1.0}}, "logit_bias[400]", "below 400"),
    ({"logit_bias": {7: 100.5}}, "logit_bias[7]", "from -100 to 100"),
    ({"logit_bias": {7: -100.5}}, "logit_bias[7]", "from -100 to 100"),
    ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "logit_bias", "at most 1024"),
]
FLOAT_FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
TAKEN_SAMPLING: list[dict[str, Any]] = [
    {"max_tokens": LARGEST_INT32},
    {"max_tokens": 0, "prompt_logprobs": 0},
    {"prompt_logprobs": 20},
    {"max_tokens": 3, "min_tokens": 3},
    {"min_tokens": 0},
    {"temperature": 0.0},
    {"temperature": 100.0},
    {"top_p": 1e-6},
    {"top_p": 1.0},
    {"top_k": -1},
    {"top_k": 0},
    {"top_k": LARGEST_INT32},
    {"min_p": 0.0},
    {"min_p": 1.0},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 2.0},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": array("f", [0.01])[0]},
    {"repetition_penalty": 10.0},
    {"seed": -(2**63)},
    {"stop": ("z" * 256,) * 16},
    {"stop_token_ids": (399,) * 64},
    {"logprobs": 0},
    {"logprobs": 20},
    {"n": 16},
    {"logit_bias": {399: -100.0, 0: 100.0}},
]


def refused(request: GenerateRequest) -> InvalidFieldError:
    with pytest.raises(InvalidFieldError) as caught:
        check_request(request, "tiny", MODEL)
    return caught.value


@pytest.mark.parametrize(("fields", "field", "limit"), REFUSED_SAMPLING, ids=lambda value: str(value)[:40])
def test_a_sampling_field_beyond_its_limit_is_refused_by_name_and_limit(
    fields: dict[str, Any], field: str, limit: str
) -> None:
    error = refused(replace(GOOD, sampling=SamplingRequest(**fields)))
    assert error.field == f"sampling.{field}"
    assert limit in str(error)


@pytest.mark.parametrize("name", FLOAT_FIELDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused(name: str, value: float) -> None:
    assert refused(replace(GOOD, sampling=SamplingRequest(**{name: value}))).field == f"sampling.{name}"  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bias_of_nan_or_infinity_is_refused(value: float) -> None:
    assert refused(replace(GOOD, sampling=SamplingRequest(logit_bias={7: value}))).field == "sampling.logit_bias[7]"


@pytest.mark.parametrize("fields", TAKEN_SAMPLING, ids=lambda value: str(value)[:40])
def test_a_sampling_field_at_its_limit_is_accepted(fields: dict[str, Any]) -> None:
    check_request(replace(GOOD, sampling=SamplingRequest(**fields)), "tiny", MODEL)


@pytest.mark.parametrize("name", ["a b", "a/b", "a\n", "é", "x" * 129, "\x7f", "tab\t"])
def test_a_request_id_with_other_characters_or_too_long_is_refused(name: str) -> None:
    assert refused(replace(GOOD, request_id=name)).field == "request_id"


@pytest.mark.parametrize("name", ["a", "!~.-0", "x" * 128, "550e8400-e29b-41d4-a716-446655440000"])
def test_a_request_id_of_printable_characters_is_accepted(name: str) -> None:
    check_request(replace(GOOD, request_id=name), "tiny", MODEL)


@pytest.mark.parametrize(
    ("request_", "field", "limit"),
    [
        (replace(GOOD, text=None), "prompt", "must be given"),
        (replace(GOOD, text=""), "text", "not be empty"),
        (replace(GOOD, text="a" * (MOST_TEXT_BYTES + 1)), "text", str(MOST_TEXT_BYTES)),
        (replace(GOOD, text="é" * (MOST_TEXT_BYTES // 2 + 1)), "text", str(MOST_TEXT_BYTES)),
        (replace(GOOD, text=None, token_ids=()), "token_ids.ids", "at least one"),
        (replace(GOOD, text=None, token_ids=(1, 2, 400)), "token_ids.ids[2]", "below 400"),
        (replace(GOOD, text=None, token_ids=(1,) * 512), "token_ids.ids", "512"),
        (replace(GOOD, resume_from_token=17), "resume_from_token", "at most max_tokens (16)"),
        (replace(GOOD, client="é" * 65), "client", "at most 64"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_prompt_that_can_never_be_served_is_refused(request_: GenerateRequest, field: str, limit: str) -> None:
    error = refused(request_)
    assert error.field == field
    assert limit in str(error)


@pytest.mark.parametrize("name", ["", "a", "é /" * 21 + "!"])
def test_any_name_of_a_client_within_the_limit_is_accepted(name: str) -> None:
    check_request(replace(GOOD, client=name), "tiny", MODEL)


def test_another_model_is_unknown_and_no_name_means_the_served_one() -> None:
    with pytest.raises(UnknownModelError, match="tiny"):
        check_request(replace(GOOD, model="other"), "tiny", MODEL)
    check_request(replace(GOOD, model=""), "tiny", MODEL)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "field", "limit"),
    [
        (0, 1, "text", "at least one"),
        (256, 1, "text", "context of 256"),
        (200, 57, "sampling.max_tokens", "256, the length of the context"),
        (100, 101, "sampling.max_tokens", "200, the size of the device's KV pool in tokens"),
        (1, LARGEST_INT32, "sampling.max_tokens", "256, the length of the context"),
    ],
)
def test_prompt_and_output_must_fit_context_and_pool(
    prompt_tokens: int, max_tokens: int, field: str, limit: str
) -> None:
    with pytest.raises(InvalidFieldError, match=limit) as caught:
        check_prompt("text", prompt_tokens, SamplingRequest(max_tokens=max_tokens), MODEL, LIMITS)
    assert caught.value.field == field


def test_prompt_and_output_that_just_fit_are_accepted() -> None:
    check_prompt("text", 100, SamplingRequest(max_tokens=100), MODEL, LIMITS)
    check_prompt("text", 100, SamplingRequest(max_tokens=156), MODEL, replace(LIMITS, device_pool_tokens=256))


def test_a_prompt_alone_counts_as_one_token_more_and_its_log_probabilities_are_bounded() -> None:
    model = replace(MODEL, max_model_len=50_000)
    limits = replace(LIMITS, max_model_len=50_000, device_pool_tokens=50_000)
    asked = SamplingRequest(max_tokens=0, prompt_logprobs=4)
    check_prompt("text", 49_999, asked, model, limits)
    with pytest.raises(InvalidFieldError, match=r"\(49999\) .* must be at most 250000, got 299994") as caught:
        check_prompt("text", 49_999, replace(asked, prompt_logprobs=5), model, limits)
    assert caught.value.field == "sampling.prompt_logprobs"


def test_a_prompt_alone_makes_one_greedy_token_that_nothing_ends() -> None:
    asked = SamplingRequest(max_tokens=0, prompt_logprobs=1, logprobs=2, n=2, stop_token_ids=(4,))
    assert resolve(asked, MODEL.eos_token_ids, seed=11) == tuple(
        JobSampling(max_tokens=1, seed=11, choice=choice, temperature=0.0, prompt_logprobs=1) for choice in (0, 1)
    )


def test_defaults_are_those_of_the_proto() -> None:
    (sampling,) = resolve(SamplingRequest(), MODEL.eos_token_ids, seed=11)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature, sampling.top_p) == (16, 0, 1.0, 1.0)
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty, sampling.logprobs) == (0, 0.0, 1.0, None)
    assert (sampling.seed, sampling.choice, sampling.stop_token_ids) == (11, 0, (0, 3))


def test_ignore_eos_keeps_the_stop_tokens_of_the_request() -> None:
    (sampling,) = resolve(SamplingRequest(ignore_eos=True, stop_token_ids=(9, 9, 3)), MODEL.eos_token_ids, seed=1)
    assert sampling.stop_token_ids == (9, 3)


def test_choices_differ_only_in_their_number() -> None:
    choices = resolve(SamplingRequest(n=3, seed=5, top_k=-1), MODEL.eos_token_ids, seed=1)
    assert [choice.choice for choice in choices] == [0, 1, 2]
    assert {replace(choice, choice=0) for choice in choices} == {choices[0]}
    assert (choices[0].seed, choices[0].top_k) == (5, 0)


def test_a_default_seed_depends_only_on_the_id_and_body_of_the_request() -> None:
    assert seed_of("a", b"body") == seed_of("a", b"body") >= 0
    assert len({seed_of("a", b"body"), seed_of("b", b"body"), seed_of("a", b"other")}) == 3
