"""The public API as values: requests and responses.

A request is as the client sent it, before any checks: an absent field is None, and the gateway applies limits and
defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from services.domain.guide import Guide

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
    guide: Guide | None = None
    prompt_logprobs: int | None = None

    @property
    def max_tokens_or_default(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def has_output(self) -> bool:
        """Whether more is wanted than the log probabilities of the prompt."""
        return self.max_tokens != 0

    @property
    def job_max_tokens(self) -> int:
        """Of a job: reading a prompt makes a token."""
        return max(1, self.max_tokens_or_default)

    @property
    def choice_count(self) -> int:
        return 1 if self.n is None else self.n


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """At most one of `text` and `token_ids` is set. `request_id` None: the server generates one. `client` is empty if
    the client gives no name. `shown_tokens`: special tokens whose text is part of the output's text; no client of
    Generate can ask for that.
    """

    model: str = ""
    request_id: str | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    resume_from_token: int | None = None
    client: str = ""
    shown_tokens: frozenset[str] = frozenset()


class EndReason(Enum):
    """Why a job ended or must end. Clients see only the first three. STOP: an end-of-sequence token, a stop token or a
    stop string; LENGTH: max_tokens; ABORT: the server is shutting down, or the job was withdrawn.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    CANCELLED = "cancelled"
    """The client is gone."""
    DEADLINE = "deadline"
    """The client's deadline passed."""

    @property
    def completes(self) -> bool:
        """Whether the output came to its own end, as opposed to being given up."""
        return self in (EndReason.STOP, EndReason.LENGTH)


class TokenLogprob(NamedTuple):
    """Natural log probability of a chosen token, or of one of a prompt, under the model's own distribution, and the
    best alternatives (token id, log probability).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Usage(NamedTuple):
    """The usage of a request: prompt tokens (counted once), and output tokens and preemptions of all choices."""

    prompt_tokens: int
    completion_tokens: int
    preemptions: int

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens together."""
        return self.prompt_tokens + self.completion_tokens


class OutputPiece(NamedTuple):
    """A piece of a choice's output that is new to the reader. `finish` is set on the last piece of the choice. One with
    `prompt_logprobs` has no output.
    """

    choice: int
    first_token_number: int
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprob]
    finish: EndReason | None
    prompt_logprobs: Sequence[TokenLogprob] = ()


class StreamMessage(NamedTuple):
    """One message of a client's stream; the last one has `usage`."""

    request_id: str
    piece: OutputPiece
    usage: Usage | None


class StreamProgress(NamedTuple):
    """What a load generator needs of a stream's message."""

    token_count: int
    finish: EndReason | None
    usage: Usage | None


class ServedModel(NamedTuple):
    """A model as listed by ListModels. `created_s`: when the gateway loaded it, in seconds since 1970."""

    model_id: str
    created_s: int
    max_model_len: int
    vocabulary_size: int
