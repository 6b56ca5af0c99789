"""The fields that both kinds of request have, as pydantic models: they validate, and they are the OpenAPI description.

null is the same as an absent field. Numbers are numbers: true is not 1, "1" is not 1, and 1.0 is not 1. The limits of
the sampling parameters are those of Generate. Fields whose values can change nothing here are accepted (`NoEffect`);
any other field that is not supported is refused by name.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from services.gateway.generation.validation import (
    FLOAT_RANGES,
    INTEGER_RANGES,
    LOGIT_BIAS_RANGE,
    MOST_GUIDE_CHOICES,
    MOST_LOGIT_BIAS_ENTRIES,
    MOST_STOP_STRING_CHARACTERS,
    MOST_STOP_STRINGS,
    MOST_STOP_TOKENS,
)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
TOKEN_ID_MAX = 2**32 - 1
MOST_NAME_CHARACTERS = 256
MOST_CHOICES = int(INTEGER_RANGES["n"].high)
MOST_LOGPROBS = int(INTEGER_RANGES["logprobs"].high)


class Body(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def _within(name: str) -> Any:
    limits = FLOAT_RANGES[name]
    # repetition_penalty is compared in single precision; clients send the decimal number.
    low = round(limits.low, 6)
    return Field(gt=low, le=limits.high) if limits.above else Field(ge=low, le=limits.high)


TokenId = Annotated[int, Field(ge=0, le=TOKEN_ID_MAX)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
StopString = Annotated[str, Field(min_length=1, max_length=MOST_STOP_STRING_CHARACTERS)]


def _is_list(value: Any) -> str:
    return "#many" if isinstance(value, list) else "#one"


Stop = Annotated[
    Annotated[StopString, Tag("#one")] | Annotated[list[StopString], Field(max_length=MOST_STOP_STRINGS), Tag("#many")],
    Discriminator(_is_list),
]
"""Tags begin with # so that they can be left out of the path of an error."""

DecimalTokenId = Annotated[str, Field(pattern="^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=LOGIT_BIAS_RANGE.low, le=LOGIT_BIAS_RANGE.high)]


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool | None = Field(None, description="one more chunk at the end, without choices, with the usage")
    continuous_usage_stats: bool | None = Field(None, description="the usage so far in every chunk")
    include_obfuscation: Literal[False] | None = Field(None, description="changes nothing")


class NoEffect(Body):
    """Fields that are accepted and change nothing. Other values than these are refused."""

    user: str | None = Field(None, max_length=1024, description="changes nothing")
    safety_identifier: str | None = Field(None, max_length=1024, description="changes nothing")
    prompt_cache_key: str | None = Field(None, max_length=1024, description="changes nothing")
    metadata: dict[str, Any] | None = Field(None, description="changes nothing")
    store: Literal[False] | None = Field(None, description="changes nothing: nothing is stored")
    service_tier: Literal["auto", "default"] | None = Field(None, description="changes nothing")
    priority: int | None = Field(None, ge=0, le=0, description="changes nothing")


class SamplingFields(NoEffect):
    """How to sample, and how to answer."""

    model: str = Field(
        min_length=1, max_length=MOST_NAME_CHARACTERS, description="name of the model, as /v1/models says"
    )
    max_tokens: int | None = Field(None, ge=1, le=INT32_MAX, description="most output tokens of a choice")
    min_tokens: int | None = Field(None, ge=0, le=INT32_MAX, description="no end before so many output tokens")
    temperature: Annotated[float, _within("temperature")] | None = Field(None, description="0 is greedy; 1 if absent")
    top_p: Annotated[float, _within("top_p")] | None = Field(None, description="share of the probability to draw from")
    top_k: int | None = Field(None, ge=-1, le=INT32_MAX, description="number of tokens to draw from; 0 or -1 is off")
    min_p: Annotated[float, _within("min_p")] | None = Field(None, description="least share of the best probability")
    presence_penalty: Annotated[float, _within("presence_penalty")] | None = Field(
        None, description="subtracted from the logits of tokens in the output"
    )
    frequency_penalty: Annotated[float, _within("frequency_penalty")] | None = Field(
        None, description="subtracted as often as the output holds the token"
    )
    repetition_penalty: Annotated[float, _within("repetition_penalty")] | None = Field(
        None, description="divides the logits of tokens in prompt or output"
    )
    seed: int | None = Field(None, ge=-INT64_MAX - 1, le=INT64_MAX, description="the same seed, the same draws")
    stop: Stop | None = Field(None, description="strings that end the output, which is cut before them")
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS)] | None = Field(
        None, description="tokens that end the output"
    )
    ignore_eos: bool | None = Field(None, description="go on after the model's own end")
    logit_bias: Annotated[dict[DecimalTokenId, Bias], Field(max_length=MOST_LOGIT_BIAS_ENTRIES)] | None = Field(
        None, description="added to the logits of these token ids"
    )
    guided_json: Annotated[dict[str, Any], Field(min_length=1)] | None = Field(
        None, description="a JSON Schema: the output is a JSON value that it allows"
    )
    guided_regex: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="a regular expression that the whole output matches"
    )
    guided_grammar: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="a grammar in Lark's syntax whose rule start is the output"
    )
    guided_choice: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MOST_GUIDE_CHOICES)] | None
    ) = Field(None, description="the output is one of these texts")
    n: int | None = Field(None, ge=1, le=MOST_CHOICES, description="number of choices for each prompt")
    stream: bool | None = Field(None, description="answer by server-sent events")
    stream_options: StreamOptions | None = Field(None, description="only with stream: true")

    @property
    def choice_count(self) -> int:
        return self.n or 1

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_in_every_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)
