"""What bodies are refused, and by which name. Nothing that JSON can hold gets further."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.openai.body_fields import SamplingFields
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.reading import read_chat, read_completion
from services.gateway.openai.requests import ChatBody, CompletionBody

SCHEMA = {"name": "a", "schema": {"type": "object"}}
MESSAGES = [{"role": "user", "content": "hello"}]


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "x", **fields}).encode()


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def refused(data: bytes, is_chat: bool = False) -> RefusedBodyError:
    with pytest.raises(RefusedBodyError) as error:
        read_chat(data) if is_chat else read_completion(data)
    assert len(str(error.value)) < 500
    return error.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [[1], [2, 2**32]]}, "prompt[1][1]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.0}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 17}, "n"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"echo": True, "logprobs": 21}, "logprobs"),
        ({"echo": True, "max_tokens": -1}, "max_tokens"),
        ({"logprobs": 1, "max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 2**63}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"more": True}}, "stream_options.more"),
        ({"suffix": "end"}, "suffix"),
        ({"store": True}, "store"),
        ({"priority": 1}, "priority"),
        ({"priority": False}, "priority"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"response_format": {"type": "text"}}, "response_format"),
    ],
)
def test_a_completion_is_refused_by_the_path_of_the_field(fields: dict[str, Any], param: str) -> None:
    error = refused(completion(**fields))
    assert error.param == param
    assert str(error).startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [*MESSAGES, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "boss", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "json_schema": SCHEMA}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**SCHEMA, "name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_json": "{}"}, "guided_json"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_conversation_is_refused_by_the_path_of_the_field(fields: dict[str, Any], param: str) -> None:
    assert refused(chat(**fields), is_chat=True).param == param


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"5",
        b'{"model": "m", "prompt": "x", "temperature": NaN}',
        b'{"model": "m", "prompt": "\\ud800"}',
        b'{"model": "m", "prompt": "\xff"}',
        b'{"model": "m", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"prompt":' * 100_000,
    ],
)
def test_what_is_not_a_json_object_is_refused_as_a_whole(data: bytes) -> None:
    error = refused(data)
    assert (error.param, error.code) == (None, "invalid_json")


def test_null_is_the_same_as_an_absent_field() -> None:
    optional = [name for name, field in CompletionBody.model_fields.items() if not field.is_required()]
    assert read_completion(completion(**dict.fromkeys(optional))) == read_completion(completion())
    optional = [name for name, field in ChatBody.model_fields.items() if not field.is_required()]
    assert read_chat(chat(**dict.fromkeys(optional))) == read_chat(chat())


def test_fields_that_change_nothing_are_taken() -> None:
    fields = {
        "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}, "store": False,
        "service_tier": "auto", "priority": 0,
    }  # fmt: skip
    assert read_completion(completion(**fields, suffix="")).user == "u"
    chat_fields = {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "modalities": ["text"]}
    assert read_chat(chat(**fields, **chat_fields)).store is False


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted({*SamplingFields.model_fields, "prompt", "messages", "logprobs", "top_logprobs"})),
    json_values,
)
def test_any_value_is_read_or_refused(name: str, value: Any) -> None:
    for read, body in ((read_completion, completion), (read_chat, chat)):
        try:
            read(body(**{name: value}))
        except RefusedBodyError as error:
            assert error.param is None or error.param.startswith((name, "stream_options", "best_of", "logprobs"))  # noqa: PT017
