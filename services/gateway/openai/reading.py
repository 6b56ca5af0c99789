"""Reads a request's body. Whatever is wrong with it becomes a RefusedBodyError with the client's own path of the field.

The JSON reader bounds depth and the length of numbers, and refuses what JSON lacks: NaN, infinities, lone surrogates.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from services.gateway.openai.body_fields import Body
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.given_guides import guides_in
from services.gateway.openai.requests import ChatBody, CompletionBody, Message, ResponseFormat
from services.gateway.openai.tool_reading import check_tools

BodyT = TypeVar("BodyT", bound=Body)

_MOST_SHOWN = 64
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_completion(data: bytes) -> CompletionBody:
    """Raises RefusedBodyError."""
    body = _read(CompletionBody, data)
    _check_stream_options(body)
    _check_one_guide(body)
    if body.best_of is not None:
        if body.best_of < body.choice_count:
            raise _invalid("best_of", f"must be at least n ({body.choice_count}), got {body.best_of}")
        if body.streams and body.best_of > body.choice_count:
            raise _invalid("best_of", "must be n when stream is true, because the best are only known at the end")
    if body.max_tokens == 0 and not body.echo:
        raise _invalid("max_tokens", "must be at least 1 unless echo is true, got 0")
    return body


def read_chat(data: bytes) -> ChatBody:
    """Raises RefusedBodyError."""
    body = _read(ChatBody, data)
    _check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise _invalid("max_tokens", "must not be given together with max_completion_tokens")
    if body.response_format is not None:
        _check_format(body.response_format)
    _check_one_guide(body)
    check_tools(body)
    for place, message in enumerate(body.messages):
        _check_message(f"messages[{place}]", message)
    return body


def _check_format(given: ResponseFormat) -> None:
    if given.type == "json_schema" and given.json_schema is None:
        raise RefusedBodyError("response_format.json_schema", "is required", "missing_required_parameter")
    if given.type != "json_schema" and given.json_schema is not None:
        raise _invalid("response_format.json_schema", "is only for the type json_schema")


def _check_one_guide(body: CompletionBody | ChatBody) -> None:
    given = guides_in(body)
    if len(given) > 1:
        raise _invalid(given[1][1], f"must not be given together with {given[0][1]}")


def _check_message(path: str, message: Message) -> None:
    if message.content is None and not message.tool_calls:
        raise RefusedBodyError(f"{path}.content", "is required", "missing_required_parameter")
    if message.tool_calls and message.role != "assistant":
        raise _invalid(f"{path}.tool_calls", "is only for the role assistant")
    if message.reasoning_content is not None and message.role != "assistant":
        raise _invalid(f"{path}.reasoning_content", "is only for the role assistant")
    if message.role == "tool" and message.tool_call_id is None:
        raise RefusedBodyError(f"{path}.tool_call_id", "is required", "missing_required_parameter")
    if message.tool_call_id is not None and message.role != "tool":
        raise _invalid(f"{path}.tool_call_id", "is only for the role tool")


def _check_stream_options(body: CompletionBody | ChatBody) -> None:
    if body.stream_options is not None and not body.streams:
        raise _invalid("stream_options", "needs stream: true")


def _invalid(param: str, message: str) -> RefusedBodyError:
    return RefusedBodyError(param, message, "invalid_value")


def _read(kind: type[BodyT], data: bytes) -> BodyT:
    try:
        document = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RefusedBodyError(None, f"is not valid JSON: {error}", "invalid_json") from None
    if not isinstance(document, dict):
        raise RefusedBodyError(None, "must be a JSON object", "invalid_json")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        # The first is enough, and the inputs of the others may be large.
        raise _refusal(error.errors(include_url=False, include_context=True)[0]) from None


def path_of(location: Sequence[int | str]) -> str:
    """The client's path of a field: `messages[1].content`. Tags of unions, which begin with #, are left out."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_NAME.fullmatch(step):
            path += f".{step}" if path else step
        elif step == "[key]" or step.startswith("#"):
            continue
        else:
            path += f"[{shown(step)}]" if path else shown(step)
    return path


def shown(value: object) -> str:
    """A value as a message quotes it: short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of many digits"
    text = "null" if value is None else str(value)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _refusal(problem: Any) -> RefusedBodyError:
    param, kind, value = path_of(problem["loc"]), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        return RefusedBodyError(param, "is not supported", "unsupported_parameter")
    if kind == "missing":
        return RefusedBodyError(param, "is required", "missing_required_parameter")
    message = str(problem["msg"]).replace("Input should", "must").replace("List should", "must")
    message = message.replace("Dictionary should", "must").replace("String should", "must")
    message = message.replace("False", "false")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return RefusedBodyError(param, f"{message}, got {shown(value)}", code)
