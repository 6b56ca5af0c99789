"""What a client is told of an answer with calls: the same however the answer was cut, and as soon as it is certain."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.tools.answer_reader import AnswerReader
from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.call_forms import (
    HERMES,
    LLAMA_3,
    MISTRAL,
    MISTRAL_ARGS,
    SHARED_FORMS,
    CallForm,
    form_of_template,
)
from services.gateway.tools.call_parts import AnswerPart, AnswerWords, ArgumentsPart, CallBegan, WordsKind
from services.gateway.tools.region_values import UnreadableRegionError
from services.gateway.tools.response_message import parse_response
from services.gateway.tools.response_template import read_response_template
from tests.gateway.tools.response_templates import CALL, OTHER_CALL, STYLES, TOOLS, WORDS

TYPES = ToolTypes(TOOLS)


def form_of(style: str) -> CallForm:
    form = form_of_template(read_response_template(STYLES[style].spec), None)
    assert form is not None
    return form


OWN_FORMS = {name: form_of(name) for name in sorted(STYLES) if name != "odd"}
FORMS = {**OWN_FORMS, **{form.name: form for form in SHARED_FORMS}}
PIECES = {
    "Hermes": STYLES["chat_ml"].pieces,
    "Llama 3": (
        '{"name": "weather", "parameters": {"days": "3"}}',
        "; ",
        "<|python_tag|>",
        CALL,
        '{"name": "Bob"}',
        OTHER_CALL,
    ),
    "Mistral": ("[TOOL_CALLS]", f"[{CALL}, {OTHER_CALL}]", f" [{CALL}", "]", f"[TOOL_CALLS] [{CALL}]"),
    "Mistral with [ARGS]": (
        "[TOOL_CALLS]weather[ARGS]",
        '{"days": "3"}',
        "[TOOL_CALLS]",
        "other[CALL_ID]ab[ARGS]",
        "{}",
    ),
    **{name: style.pieces for name, style in STYLES.items()},
}


def read(form: CallForm, *pieces: str, most_calls: int | None = None, prompt: str = "") -> list[AnswerPart]:
    reader = AnswerReader(form, TYPES, prompt, most_calls)
    return [part for piece in pieces for part in reader.push(piece)] + reader.finish()


def joined(parts: list[AnswerPart]) -> dict[str, Any]:
    """The parts put together, as a client does it. Each call's name comes before its arguments."""
    message: dict[str, Any] = {}
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, AnswerWords):
            message[part.kind.value] = message.get(part.kind.value, "") + part.text
        elif isinstance(part, CallBegan):
            assert part.call == len(calls)
            calls.append([part.name, ""])
        else:
            assert part.call == len(calls) - 1
            calls[part.call][1] += part.text
    return {**message, "calls": [(name, arguments) for name, arguments in calls]}


@st.composite
def answers(draw: st.DrawFn) -> tuple[CallForm, str]:
    name = draw(st.sampled_from(sorted(FORMS)))
    return FORMS[name], "".join(draw(st.lists(st.sampled_from(PIECES[name] + WORDS), max_size=7)))


@given(answers(), st.data())
@settings(max_examples=150)
def test_a_streamed_answer_adds_up_to_the_whole_one(answer: tuple[CallForm, str], data: st.DataObject) -> None:
    form, text = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert joined(read(form, *pieces)) == joined(read(form, text)) == joined(read(form, *text))


@given(st.sampled_from(sorted(OWN_FORMS)), st.data())
@settings(max_examples=80)
def test_calls_and_a_single_text_are_those_of_the_whole_message(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[name] + WORDS), max_size=5)))
    try:
        message = parse_response(text, OWN_FORMS[name].template, "", TYPES)
    except UnreadableRegionError:
        return
    told = joined(read(OWN_FORMS[name], text))
    calls = message.get("tool_calls", [])
    wanted = [(one["function"].get("name"), one["function"].get("arguments", {})) for one in calls]
    if all(isinstance(call, str) and call for call, _ in wanted):
        assert [(call, json.loads(arguments)) for call, arguments in told["calls"]] == wanted
    if not calls and "content" in message and name in ("blocks", "tags", "plain_tags"):
        assert told.get("content", "") == message["content"] or name == "blocks"


WEATHER = ("weather", '{"city": "Oslo", "days": 3, "wind": true}')
OTHER = ("other", '{"x": [1, {"y": null}], "s": "a\\"}b"}')
CONTENT = WordsKind.CONTENT


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, f"Well.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{OTHER_CALL}</tool_call>\n", "Well.",
         [WEATHER, OTHER]),
        (HERMES, "no call at all ", "no call at all ", []),
        (HERMES, f"<tool_call>{CALL}", None, [WEATHER]),
        (HERMES, "a <tool_call>nothing</tool_call> b", "a <tool_call>nothing</tool_call> b", []),
        (HERMES, '<tool_call>{"name": "other"}</tool_call>', None, [("other", "{}")]),
        (HERMES, '<tool_call>{"name": "other", "parameters": {"a": 1}}</tool_call>', None, [("other", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "other", "arguments": "{\\"a\\": 1}"}</tool_call>', None,
         [("other", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "other", "arguments": {"a": "1', None, [("other", '{"a": "1')]),
        (HERMES, '<tool_call>{"name": "other", "arguments": {"a": "x", "b": "\\ud800"}}</tool_call>', None,
         [("other", '{"a": "x", "b": "\\ud800"}')]),
        (LLAMA_3, '{"name": "weather", "parameters": {"days": "3"}}', None, [("weather", '{"days": 3}')]),
        (LLAMA_3, f"<|python_tag|>{CALL}; {OTHER_CALL}", None, [WEATHER, OTHER]),
        (LLAMA_3, '{"name": "nobody", "parameters": {}}', '{"name": "nobody", "parameters": {}}', []),
        (LLAMA_3, '{"size": 3} is it', '{"size": 3} is it', []),
        (LLAMA_3, f"It is {CALL}", f"It is {CALL}", []),
        (MISTRAL, f"Hm.[TOOL_CALLS] [{CALL}, {OTHER_CALL}]", "Hm.", [WEATHER, OTHER]),
        (MISTRAL, "[TOOL_CALLS] none", "[TOOL_CALLS] none", []),
        (MISTRAL_ARGS, 'Hm.[TOOL_CALLS]weather[ARGS]{"days": "3"}[TOOL_CALLS]other[CALL_ID]a1[ARGS]{}', "Hm.",
         [("weather", '{"days": 3}'), ("other", "{}")]),
        (FORMS["tags"], "\n<tool_call>\n<function=weather>\n<parameter=days>3</parameter></function>\n</tool_call>",
         None, [("weather", '{"days": 3}')]),
        (FORMS["dialect"], '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|><turn|>', None,
         [("weather", '{"city": "Oslo"}')]),
    ],
)  # fmt: skip
def test_calls_of_every_form(form: CallForm, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    told = joined(read(form, text))
    assert (told.get("content"), told["calls"]) == (content, calls)


@pytest.mark.parametrize(
    "form", [form for form in FORMS.values() if form.frame is not None], ids=lambda form: form.name
)
def test_calls_written_as_the_form_says_are_read_as_such(form: CallForm) -> None:
    assert form.frame is not None
    calls = [WEATHER, OTHER] if form.frame.between is not None else [WEATHER]
    written = form.frame.text([(name, json.loads(arguments)) for name, arguments in calls])
    assert joined(read(form, written)) == {"calls": calls}


def test_a_name_is_told_before_the_arguments_and_these_before_they_are_whole() -> None:
    reader = AnswerReader(HERMES, TYPES)
    assert reader.push("Hello") == [AnswerWords(CONTENT, "Hello")]
    assert reader.push('\n<tool_call>\n{"name": "weath') == []
    assert reader.push('er", ') == [CallBegan(0, "weather")]
    assert reader.push('"arguments": {"ci') == [ArgumentsPart(0, '{"ci')]
    assert reader.push('ty": "Os') == [ArgumentsPart(0, 'ty": "Os')]
    # Days are a number: the text is held until it can be turned into one.
    assert reader.push('lo", "days": "1') == [ArgumentsPart(0, 'lo", "days": ')]
    assert reader.push('2"}}') == [ArgumentsPart(0, "12}")]
    assert reader.push("\n</tool_call>") == reader.finish() == []


def test_arguments_that_are_tags_are_told_one_by_one() -> None:
    reader = AnswerReader(FORMS["plain_tags"], TYPES)
    # The opening is an expression, which might match more.
    assert reader.push("<call:weather>") == []
    assert reader.push("<arg days>4") == [CallBegan(0, "weather")]
    assert reader.push("</arg> <arg ") == [ArgumentsPart(0, '{"days": 4')]
    assert reader.push("city>Oslo</arg></call>") == [ArgumentsPart(0, ', "city": "Oslo"'), ArgumentsPart(0, "}")]


def test_arguments_that_come_first_wait_for_the_name() -> None:
    reader = AnswerReader(HERMES, TYPES)
    assert reader.push('<tool_call>{"arguments": {"x": 1}, "name": ') == []
    assert reader.push('"other"}') == [CallBegan(0, "other"), ArgumentsPart(0, '{"x": 1}')]


def test_calls_beyond_the_most_are_left_out() -> None:
    text = f"<tool_call>{CALL}</tool_call><tool_call>{OTHER_CALL}</tool_call>"
    assert joined(read(HERMES, text, most_calls=1)) == {"calls": [WEATHER]}


def test_what_the_prompt_opens_goes_on_in_the_answer() -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    parts = read(FORMS["chat_ml"], "hm</think>\n\nYes", prompt=prompt)
    assert joined(parts) == {"reasoning_content": "hm", "content": "Yes", "calls": []}


def test_a_call_that_the_prompt_begins_is_told_from_its_name_on() -> None:
    prompt = '<|im_start|>assistant\n<tool_call>{"name": "other", "arg'
    assert joined(read(FORMS["chat_ml"], 'uments": {}}</tool_call>', prompt=prompt)) == {"calls": [("other", "{}")]}
    plain = read(FORMS["plain_tags"], "<arg a>1</arg></call>", prompt="<|im_start|>assistant\n<call:other>")
    assert joined(plain) == {"calls": [("other", '{"a": 1}')]}


def test_only_special_tokens_of_the_form_are_shown() -> None:
    special = ("<s>", "</s>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>")
    assert LLAMA_3.shown_tokens(special) == {"<|python_tag|>"}
    assert MISTRAL_ARGS.shown_tokens(special) == {"[TOOL_CALLS]", "[ARGS]"}
    assert FORMS["channels"].shown_tokens(special) == {"<|channel|>"}
