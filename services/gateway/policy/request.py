"""A request as the client put it, before anything is checked: absent is None, limits and defaults belong to
`validation` and `resolve`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
class Request:
    """One `GenerateRequest`. At most one of `text` and `token_ids` is set; `request_id` None: the server makes one."""

    model: str
    request_id: str | None
    text: str | None
    token_ids: Sequence[int] | None
    sampling: SamplingRequest
    resume_from_token: int | None
