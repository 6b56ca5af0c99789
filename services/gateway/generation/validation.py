"""Checks a request against the limits in inference.proto.

There are two steps, because the prompt's tokens are not known at first: `check_request` checks everything that needs no
tokenizer, `check_prompt` the number of tokens. Each refusal is an InvalidFieldError that names the path of the field
and the limit, or an UnknownModelError. The only state of the server that matters here is `ServingLimits`.
"""

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.domain.errors import ContextLengthError, InvalidFieldError, UnknownModelError
from services.domain.generation import GenerateRequest, SamplingRequest
from services.domain.guide import Guide, GuideKind
from services.domain.prompt_logprobs import MOST_PROMPT_LOGPROBS
from services.domain.submission import MOST_CLIENT_CHARACTERS, ServingLimits

MOST_TEXT_BYTES = 4 * 1024 * 1024
MOST_STOP_STRINGS = 16
MOST_STOP_STRING_CHARACTERS = 256
MOST_STOP_TOKENS = 64
MOST_LOGIT_BIAS_ENTRIES = 1024
MOST_GUIDE_BYTES = 128 * 1024
MOST_GUIDE_CHOICES = 1024

# Printable ASCII except the space and '/'; in a job id '/' separates the request id from the choice.
_REQUEST_ID = re.compile(r"[!-.0-~]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What validation needs to know about the model. `eos_token_ids` end the output; token ids are below
    `vocabulary_size`.
    """

    vocabulary_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


class Range(NamedTuple):
    """The limits of a number, inclusive. With `above`, `low` itself is excluded."""

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        # Every comparison with NaN is false, so NaN is outside.
        return value <= self.high and (value > self.low if self.above else value >= self.low)

    def __str__(self) -> str:
        return f"above {self.low:g} and at most {self.high:g}" if self.above else f"from {self.low:g} to {self.high:g}"


FLOAT_RANGES = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, above=True),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    # It divides logits, which would become infinite if it were close to zero. The bound is 0.01 in single precision,
    # the precision in which the value arrives.
    "repetition_penalty": Range(array("f", [0.01])[0], 10),
}
INTEGER_RANGES = {
    "max_tokens": Range(1, math.inf),
    "logprobs": Range(0, 20),
    "prompt_logprobs": Range(0, 20),
    "n": Range(1, 16),
    "top_k": Range(-1, math.inf),
}
LOGIT_BIAS_RANGE = Range(-100, 100)


def check_request(request: GenerateRequest, served_model: str, model: ModelLimits) -> None:
    """Checks everything that can be checked before tokenizing."""
    if request.model not in ("", served_model):
        raise UnknownModelError(f"model {_short(request.model)} is not served here; {served_model!r} is")
    if request.request_id is not None and not _REQUEST_ID.fullmatch(request.request_id):
        raise InvalidFieldError("request_id", "must be 1 to 128 printable ASCII characters other than spaces and '/'")
    if len(request.client) > MOST_CLIENT_CHARACTERS:
        raise InvalidFieldError(
            "client", f"must be at most {MOST_CLIENT_CHARACTERS} characters long, got {len(request.client)}"
        )
    _check_prompt_given(request, model)
    check_sampling(request.sampling, model.vocabulary_size)
    most = request.sampling.max_tokens_or_default
    if request.resume_from_token is not None and request.resume_from_token > most:
        raise InvalidFieldError(
            "resume_from_token", f"must be at most max_tokens ({most}), got {request.resume_from_token}"
        )


def _check_prompt_given(request: GenerateRequest, model: ModelLimits) -> None:
    if request.text is None and request.token_ids is None:
        raise InvalidFieldError("prompt", "text or token_ids must be given")
    if request.text is not None:
        if not request.text:
            raise InvalidFieldError("text", "must not be empty")
        if utf8_length(request.text) > MOST_TEXT_BYTES:
            raise InvalidFieldError(
                "text", f"must be at most {MOST_TEXT_BYTES} bytes in UTF-8, got {utf8_length(request.text)}"
            )
    if request.token_ids is not None:
        if not request.token_ids:
            raise InvalidFieldError("token_ids.ids", "must contain at least one token")
        # The length comes first, so that a prompt of millions of tokens is refused without looking at each.
        _check_context("token_ids.ids", len(request.token_ids), model.max_model_len)
        _check_vocabulary("token_ids.ids", request.token_ids, model.vocabulary_size)


def check_prompt(
    field: str, prompt_tokens: int, sampling: SamplingRequest, model: ModelLimits, limits: ServingLimits
) -> None:
    """Checks that prompt and output fit, and the log probabilities of the prompt. `field` is the path of the field that
    holds the prompt.
    """
    max_tokens = sampling.job_max_tokens
    if prompt_tokens == 0:
        raise InvalidFieldError(field, "must contain at least one token")
    context = min(model.max_model_len, limits.max_model_len)
    _check_context(field, prompt_tokens, context)
    total = prompt_tokens + max_tokens
    pool = limits.device_pool_tokens
    for meaning, most in (("the length of the context", context), ("the size of the device's KV pool in tokens", pool)):
        if total > most:
            raise ContextLengthError(
                "sampling.max_tokens",
                f"prompt tokens ({prompt_tokens}) plus max_tokens ({max_tokens}) must be at most {most}, {meaning}",
            )
    if sampling.prompt_logprobs is not None:
        numbers = prompt_tokens * sampling.choice_count * (1 + sampling.prompt_logprobs)
        if numbers > MOST_PROMPT_LOGPROBS:
            raise InvalidFieldError(
                "sampling.prompt_logprobs",
                f"prompt tokens ({prompt_tokens}) times choices ({sampling.choice_count}) times "
                f"{1 + sampling.prompt_logprobs} must be at most {MOST_PROMPT_LOGPROBS}, got {numbers}",
            )


def check_sampling(sampling: SamplingRequest, vocabulary_size: int) -> None:
    """Checks the fields of SamplingParams, first each number on its own."""
    for name, limits in FLOAT_RANGES.items():
        _check_number(f"sampling.{name}", getattr(sampling, name), limits)
    for name, limits in INTEGER_RANGES.items():
        value = getattr(sampling, name)
        if name == "max_tokens" and value == 0 and sampling.prompt_logprobs is not None:
            continue
        if value is not None and not limits.holds(value):
            wanted = f"at least {limits.low:g}" if limits.high == math.inf else str(limits)
            raise InvalidFieldError(f"sampling.{name}", f"must be {wanted}, got {value}")
    most = sampling.max_tokens_or_default
    if sampling.min_tokens is not None and not 0 <= sampling.min_tokens <= most:
        raise InvalidFieldError(
            "sampling.min_tokens", f"must be from 0 to max_tokens ({most}), got {sampling.min_tokens}"
        )
    _check_stop(sampling)
    _check_vocabulary("sampling.stop_token_ids", sampling.stop_token_ids, vocabulary_size)
    if len(sampling.logit_bias) > MOST_LOGIT_BIAS_ENTRIES:
        raise InvalidFieldError(
            "sampling.logit_bias",
            f"must have at most {MOST_LOGIT_BIAS_ENTRIES} entries, got {len(sampling.logit_bias)}",
        )
    for token_id, bias in sampling.logit_bias.items():
        field = f"sampling.logit_bias[{token_id}]"
        if not 0 <= token_id < vocabulary_size:
            raise InvalidFieldError(field, f"the token id must be below {vocabulary_size}, the size of the vocabulary")
        _check_number(field, bias, LOGIT_BIAS_RANGE)
    if sampling.guide is not None:
        _check_guide(sampling.guide)


def _check_guide(guide: Guide) -> None:
    """Its size. Whether it can be followed, only compiling it can tell."""
    field = f"sampling.guide.{guide.kind.value}"
    if guide.kind is GuideKind.JSON_OBJECT:
        return
    if guide.kind is GuideKind.CHOICE:
        field += ".texts"
        if not 1 <= len(guide.choices) <= MOST_GUIDE_CHOICES:
            raise InvalidFieldError(field, f"must have from 1 to {MOST_GUIDE_CHOICES} texts, got {len(guide.choices)}")
        for place, text in enumerate(guide.choices):
            if not text:
                raise InvalidFieldError(f"{field}[{place}]", "must not be empty")
    elif not guide.text:
        raise InvalidFieldError(field, "must not be empty")
    size_bytes = utf8_length(guide.text) + sum(utf8_length(text) for text in guide.choices)
    if size_bytes > MOST_GUIDE_BYTES:
        raise InvalidFieldError(field, f"must be at most {MOST_GUIDE_BYTES} bytes in UTF-8, got {size_bytes}")


def _check_stop(sampling: SamplingRequest) -> None:
    if len(sampling.stop) > MOST_STOP_STRINGS:
        raise InvalidFieldError(
            "sampling.stop", f"must have at most {MOST_STOP_STRINGS} strings, got {len(sampling.stop)}"
        )
    for place, stop in enumerate(sampling.stop):
        if not 1 <= len(stop) <= MOST_STOP_STRING_CHARACTERS:
            raise InvalidFieldError(
                f"sampling.stop[{place}]",
                f"must be from 1 to {MOST_STOP_STRING_CHARACTERS} characters long, got {len(stop)}",
            )
    if len(sampling.stop_token_ids) > MOST_STOP_TOKENS:
        raise InvalidFieldError(
            "sampling.stop_token_ids", f"must have at most {MOST_STOP_TOKENS} ids, got {len(sampling.stop_token_ids)}"
        )


def _check_number(field: str, value: float | None, limits: Range) -> None:
    if value is not None and not limits.holds(value):
        raise InvalidFieldError(field, f"must be {limits}, got {value:g}")


def _check_context(field: str, prompt_tokens: int, context: int) -> None:
    if prompt_tokens >= context:
        raise ContextLengthError(
            field, f"must leave room for output in the context of {context} tokens, got {prompt_tokens} tokens"
        )


def _check_vocabulary(field: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    """Ids are unsigned. A valid list is walked once, because this is the costliest check of a request."""
    if token_ids and max(token_ids) >= vocabulary_size:
        place = next(at for at, token_id in enumerate(token_ids) if token_id >= vocabulary_size)
        raise InvalidFieldError(
            f"{field}[{place}]", f"must be below {vocabulary_size} (the size of the vocabulary), got {token_ids[place]}"
        )


def utf8_length(text: str) -> int:
    """The length of the text in bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _short(name: str) -> str:
    return repr(name if len(name) <= 64 else name[:64] + "...")
