"""What a client asks for and what it gets: the public API as values.

A request is as the client put it, before anything is checked: absent is None, limits and defaults are the gateway's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """The fields of `SamplingParams` in inference.proto, with the same names."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def max_tokens_or_default(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def choice_count(self) -> int:
        return 1 if self.n is None else self.n


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One `GenerateRequest`. At most one of `text` and `token_ids` is set; `request_id` None: the server makes one."""

    model: str = ""
    request_id: str | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    resume_from_token: int | None = None


class EndReason(Enum):
    """Why a job ended, or is to end. Clients are told of the first three: STOP is an end-of-sequence token, a stop
    token or a stop string, LENGTH is max_tokens, ABORT is a server that shuts down or a job taken back.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    CANCELLED = "cancelled"
    """The client is gone."""
    DEADLINE = "deadline"
    """The client's deadline passed."""


class TokenLogprob(NamedTuple):
    """Natural log probability of a chosen token under the model's own distribution, and the best alternatives (token
    id, log probability).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Usage(NamedTuple):
    """What a request took: tokens of the prompt (counted once), output tokens and preemptions of all choices."""

    prompt_tokens: int
    completion_tokens: int
    preemptions: int

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.completion_tokens


class OutputPiece(NamedTuple):
    """Some output of a choice that a reader has not had. `finish` is set on the last piece of the choice."""

    choice: int
    first_token_number: int
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprob]
    finish: EndReason | None


class StreamMessage(NamedTuple):
    """One message of a client's stream; `usage` comes with the last."""

    request_id: str
    piece: OutputPiece
    usage: Usage | None


class StreamProgress(NamedTuple):
    """What a load generator keeps of a message of a stream."""

    token_count: int
    finish: EndReason | None
    usage: Usage | None


class ServedModel(NamedTuple):
    """A model as ListModels names it. `created_s`: when the gateway loaded it, in seconds since 1970."""

    model_id: str
    created_s: int
    max_model_len: int
    vocabulary_size: int
