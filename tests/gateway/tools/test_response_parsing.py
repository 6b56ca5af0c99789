"""Answers become the messages that transformers' parser makes of them, however they are cut."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing import parse_response as their_parse_response

from services.domain.errors import ModelFolderError
from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.region_values import UnreadableRegionError
from services.gateway.tools.regions import Closed, Regions, Text
from services.gateway.tools.response_message import parse_response
from services.gateway.tools.response_template import read_response_template
from tests.gateway.tools.response_templates import CHAT_ML, STYLES, TOOLS, WORDS, Style

TEMPLATES = {name: read_response_template(style.spec) for name, style in STYLES.items()}


def theirs(style: Style, text: str, prompt: str, tools: list[dict[str, Any]] | None) -> Any:
    """transformers' message; None if it finds the answer unreadable."""
    try:
        return their_parse_response(text, style.spec, prefix=prompt, tools=deepcopy(tools))  # type: ignore[arg-type]
    except (ValueError, KeyError):
        return None


def ours(name: str, text: str, prompt: str, tools: list[dict[str, Any]] | None) -> Any:
    try:
        return parse_response(text, TEMPLATES[name], prompt, ToolTypes(tools or ()))
    except UnreadableRegionError:
        return None


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, str, str]:
    """A style, an answer in it and a prompt before that."""
    name = draw(st.sampled_from(sorted(STYLES)))
    pieces = draw(st.lists(st.sampled_from(STYLES[name].pieces + WORDS), max_size=7))
    return name, "".join(pieces), draw(st.sampled_from(STYLES[name].prompts))


@given(answers(), st.booleans())
@settings(max_examples=150)
def test_the_message_is_that_of_transformers(answer: tuple[str, str, str], has_tools: bool) -> None:
    name, text, prompt = answer
    tools = TOOLS if has_tools else None
    wanted = theirs(STYLES[name], text, prompt, tools)
    message = ours(name, text, prompt, tools)
    assert message == wanted
    # 1 == True == 1.0, and the order of the keys is that of the text.
    assert json.dumps(message) == json.dumps(wanted)


@given(answers(), st.data())
@settings(max_examples=100)
def test_regions_are_those_of_transformers_and_do_not_depend_on_the_cuts(
    answer: tuple[str, str, str], data: st.DataObject
) -> None:
    name, text, prompt = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    regions = Regions(TEMPLATES[name], prompt)
    events = [*regions.begun, *(event for piece in pieces for event in regions.feed(piece)), *regions.finish()]
    whole = Regions(TEMPLATES[name], prompt)
    at_once = [*whole.begun, *whole.feed(text), *whole.finish()]
    closed = [event for event in events if isinstance(event, Closed)]
    assert closed == [event for event in at_once if isinstance(event, Closed)]
    assert "".join(event.text for event in events if isinstance(event, Text)) == "".join(one.body for one in closed)
    parser = ResponseParser(STYLES[name].spec, prefix=prompt)
    try:
        shown = [*parser.initial_events, *(event for piece in pieces for event in parser.feed(piece))]
        shown += parser.finalize()[1]
    except (ValueError, KeyError):
        return
    assert [event["field"] for event in shown if event["type"] == "region_close"] == [one.field.name for one in closed]
    chunks = "".join(event["text"] for event in shown if event["type"] == "region_chunk")
    assert chunks == "".join(one.body for one in closed)


def test_text_is_told_as_soon_as_it_can_be_no_delimiter() -> None:
    regions = Regions(read_response_template(CHAT_ML.spec))
    assert [event for event in regions.feed("some words <tool") if isinstance(event, Text)] == [Text("some words")]
    assert [event for event in regions.feed("s") if isinstance(event, Text)] == [Text(" <tools")]


def test_a_long_answer_is_read_in_pieces_as_at_once() -> None:
    text = (
        "word " * 3000
        + "<tool_call>"
        + json.dumps({"name": "weather", "arguments": {"x": "y" * 9000}})
        + "</tool_call>"
    )
    regions = Regions(read_response_template(CHAT_ML.spec))
    events = [event for at in range(0, len(text), 50) for event in regions.feed(text[at : at + 50])] + regions.finish()
    assert [event.body.strip() for event in events if isinstance(event, Closed)] == [
        ("word " * 3000).strip(),
        text[text.index("{") : text.index("</tool_call>")],
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ([], "must be an object"),
        ({"version": 2}, "version must be 1"),
        ({"more": 1}, "more is not known"),
        ({"defaults": []}, "defaults must be an object"),
        ({"fields": {}}, "fields must be an object that is not empty"),
        ({"fields": {"a": {}, "b": {}}}, "only one may lack 'open'"),
        ({"fields": {"a": 1}}, "fields.a must be an object"),
        ({"fields": {"a": {"opens": "x"}}}, "fields.a.opens is not known"),
        ({"fields": {"a": {"open": []}}}, "fields.a.open must be a text"),
        ({"fields": {"a": {"open": "x", "open_pattern": "x"}}}, "fields.a.open must not be given"),
        ({"fields": {"a": {"open_pattern": "("}}}, "fields.a.open_pattern is no regular expression"),
        ({"fields": {"a": {"open_pattern": "(?P<b>x)"}}}, "captures b"),
        ({"fields": {"a": {"content": "yaml"}}}, "fields.a.content must be one of"),
        ({"fields": {"a": {"join": "x"}}}, "fields.a.join"),
        ({"fields": {"a": {"transform_each": True}}}, "fields.a.transform_each"),
        ({"fields": {"a": {"transform": ["x {content}"]}}}, "fields.a.transform 'x {content}' mixes"),
        ({"start_anchor": ""}, "start_anchor must be a text"),
    ],
)
def test_a_damaged_template_is_refused_by_the_name_of_the_entry_as_transformers_refuses_it(
    change: Any, said: str
) -> None:
    spec = {"start_anchor": "x", "fields": {"a": {}}, **change} if isinstance(change, dict) else change
    with pytest.raises(ModelFolderError, match=r"^response_template") as refused:
        read_response_template(spec)
    assert said in str(refused.value)
    with pytest.raises(ValueError):  # noqa: PT011 (their messages are theirs)
        ResponseParser(spec, prefix="")


def test_a_template_without_an_anchor_is_refused() -> None:
    with pytest.raises(ModelFolderError, match="start_anchor or start_anchor_pattern must be given"):
        read_response_template({"fields": {"a": {}}})
