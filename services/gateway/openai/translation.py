"""From an OpenAI body to requests as Generate takes them, and from their refusals back to the client's own paths.

A completion with several prompts becomes one request for each. Numbers are rounded to single precision, as they are on
the wire of Generate, so that both ways to the same model draw the same tokens.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.domain.errors import ContextLengthError, FastServeError, InvalidFieldError
from services.domain.generation import GenerateRequest, SamplingRequest
from services.domain.guide import Guide
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.given_guides import guides_in
from services.gateway.openai.requests import ChatBody, CompletionBody
from services.gateway.openai.tool_use import ToolUse

_SINGLE_PRECISION = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_SAMPLING = "sampling."
_PROMPT_FIELDS = ("text", "token_ids.ids")
_GUIDE = re.compile(r"guide(\.choice\.texts|\.(json_schema|json_object|regex|grammar|choice)|$)")
"""What stands for the client's field; a path within it may follow."""


@dataclass(frozen=True, slots=True)
class ClientPaths:
    """What the client called the fields of one request."""

    prompt: str
    max_tokens: str = "max_tokens"
    logprobs: str = "logprobs"
    has_one_stop: bool = False
    guide: str = "guide"

    def refusal(self, error: FastServeError) -> FastServeError:
        """The error with the client's path in place of Generate's; other errors as they are."""
        if not isinstance(error, InvalidFieldError) or isinstance(error, RefusedBodyError):
            return error
        message = str(error).removeprefix(f"{error.field}: ").replace("max_tokens", self.max_tokens)
        path = self._path(error.field)
        if isinstance(error, ContextLengthError):
            return ContextLengthError(path, message)
        return InvalidFieldError(path, message)

    def _path(self, field: str) -> str:
        if field.startswith(_SAMPLING):
            name = field.removeprefix(_SAMPLING)
            if name.startswith("stop[") and self.has_one_stop:
                return "stop"
            if guided := _GUIDE.match(name):
                return self.guide + name[guided.end() :]
            names = {"max_tokens": self.max_tokens, "logprobs": self.logprobs, "prompt_logprobs": "logprobs"}
            return names.get(name, name)
        for prompt_field in _PROMPT_FIELDS:
            if field.startswith(prompt_field):
                # The tokens of a conversation are not the client's: it only knows its messages.
                return self.prompt + ("" if self.prompt == "messages" else field.removeprefix(prompt_field))
        return field


def completion_requests(body: CompletionBody) -> list[tuple[GenerateRequest, ClientPaths]]:
    """One request for each prompt, in order."""
    logprobs = body.logprobs
    if body.best_of is not None and body.best_of > body.choice_count:
        logprobs = logprobs or 0
    sampling = _sampling(body, body.max_tokens, logprobs, body.best_of or body.choice_count)
    if body.echo and (body.logprobs is not None or body.max_tokens == 0):
        sampling = replace(sampling, prompt_logprobs=body.logprobs or 0)
    requests = []
    for place, prompt in enumerate(body.prompts):
        text, token_ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        request = GenerateRequest(model=body.model, text=text, token_ids=token_ids, sampling=sampling)
        path = "prompt" if body.has_one_prompt else f"prompt[{place}]"
        paths = ClientPaths(path, has_one_stop=isinstance(body.stop, str), guide=_guide_path(body))
        requests.append((request, paths))
    return requests


def chat_paths(body: ChatBody) -> ClientPaths:
    """The names of a conversation's fields."""
    name = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
    return ClientPaths("messages", name, "top_logprobs", isinstance(body.stop, str), _guide_path(body))


def chat_request(
    body: ChatBody, prompt: Sequence[int], most_tokens: int, tools: ToolUse | None = None
) -> GenerateRequest:
    """The request for a rendered conversation. `most_tokens`: what there is room for, if the client sets no limit."""
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    given = body.max_completion_tokens or body.max_tokens
    most = max(1, most_tokens) if given is None else given
    sampling = _sampling(body, most, logprobs, body.choice_count)
    if tools is None:
        return GenerateRequest(model=body.model, token_ids=prompt, sampling=sampling)
    sampling = replace(sampling, guide=sampling.guide or tools.guide)
    return GenerateRequest(model=body.model, token_ids=prompt, sampling=sampling, shown_tokens=tools.shown_tokens)


def guide_of(body: CompletionBody | ChatBody) -> Guide | None:
    """What the body itself says that the output must look like; None: nothing."""
    return next((guide for guide, _ in guides_in(body)), None)


def _guide_path(body: CompletionBody | ChatBody) -> str:
    return next(
        (path for _, path in guides_in(body)), "tools" if isinstance(body, ChatBody) and body.tools else "guide"
    )


def _sampling(
    body: CompletionBody | ChatBody, max_tokens: int | None, logprobs: int | None, choices: int
) -> SamplingRequest:
    numbers: dict[str, Any] = {name: _single(getattr(body, name)) for name in _SINGLE_PRECISION}
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingRequest(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        top_k=body.top_k,
        seed=body.seed,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        n=choices,
        logit_bias={int(token_id): single(bias) for token_id, bias in (body.logit_bias or {}).items()},
        guide=guide_of(body),
        **numbers,
    )


def single(value: float) -> float:
    """The nearest number in single precision."""
    return array("f", [value])[0]


def _single(value: float | None) -> float | None:
    return None if value is None else single(value)
