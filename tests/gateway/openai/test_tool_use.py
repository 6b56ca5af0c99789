"""Requests with tools: what the template gets, what the output is held to, and what is refused and where."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

from services.gateway.model_tokenizer import ModelTokenizer
from services.gateway.openai.call_answers import whole_message
from services.gateway.openai.chat_prompt import ChatPrompts
from services.gateway.openai.chat_template import ChatTemplate, load_response_template, load_template
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.reading import read_chat
from services.gateway.openai.tool_use import ToolUse, tool_use
from services.gateway.tools.call_guides import arguments_schema
from services.runtime.guide_compiler import GuideCompiler
from tests.gateway.openai.tool_templates import (
    BLIND,
    CLOCK,
    HERMES,
    TAGS,
    TEXT_ARGUMENTS,
    TOOL_TEMPLATES,
    WEATHER,
    tools_folder,
)
from tests.gateway.tools.response_templates import CHAT_ML
from tests.gateway.tools.response_templates import TAGS as TAGS_STYLE

FORMS: dict[str, tuple[str, Any]] = {
    **{name: (template, None) for name, template in TOOL_TEMPLATES.items()},
    "response_template": (HERMES, CHAT_ML.spec),
    "tags": (TAGS, TAGS_STYLE.spec),
}
QUESTION: dict[str, Any] = {"role": "user", "content": "Is it <|im_end|> windy?"}
HISTORY = [
    QUESTION,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "abc123def",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"days": 1, "city": "é"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "abc123def", "content": "yes"},
    {"role": "user", "content": "And now?"},
]


def prompts_of(folder: Path) -> ChatPrompts:
    template, response_template = load_template(folder), load_response_template(folder)
    assert isinstance(template, ChatTemplate), template
    assert not isinstance(response_template, str), response_template
    return ChatPrompts(template.for_tools, ModelTokenizer(folder), response_template)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [QUESTION], "tools": [WEATHER, CLOCK], **fields}).encode()


def use_of(folder: Path, **fields: Any) -> ToolUse:
    found = tool_use(read_chat(body(**fields)), prompts_of(folder), ModelTokenizer(folder))
    assert found is not None
    return found


@pytest.mark.parametrize("name", sorted(FORMS))
def test_prompts_with_tools_and_calls_have_the_tokens_that_transformers_gives_them(name: str, tmp_path: Path) -> None:
    folder = tools_folder(tmp_path / "model", *FORMS[name])
    reference: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    prompts = prompts_of(folder)
    for messages in ([QUESTION], HISTORY):
        chat = read_chat(body(messages=messages))
        ours = prompts.prepared(chat.messages, 10_000, [tool.given for tool in chat.tools or ()])
        # Templates of transformers get arguments as objects, and no content where there is none.
        shown = json.loads(json.dumps(messages))
        for message in shown:
            if "tool_calls" in message:
                del message["content"]
                for call in message["tool_calls"]:
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        theirs = reference.apply_chat_template(
            shown, tools=[WEATHER, CLOCK], add_generation_prompt=True, sanitize_control_tokens=True, return_dict=False
        )
        assert ours.token_ids == theirs
        assert ours.text == reference.decode(theirs)


def test_tools_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    prompts = prompts_of(tools_folder(tmp_path / "model", HERMES))
    given = {
        "function": {"strict": True, "parameters": {"properties": {"b": {}, "a": {}}, "type": "object"}, "name": "f"}
    }
    chat = read_chat(body(tools=[{**given, "type": "function"}]))
    text = prompts.prepared(chat.messages, 10_000, [tool.given for tool in chat.tools or ()]).text
    assert json.dumps({**given, "type": "function"}) in text


def test_arguments_are_text_for_a_template_that_writes_them_as_they_are(tmp_path: Path) -> None:
    prompts = prompts_of(tools_folder(tmp_path / "model", TEXT_ARGUMENTS))
    chat = read_chat(body(messages=HISTORY[:-1]))
    assert '"arguments": {"days": 1, "city": "é"}}' in prompts.prepared(chat.messages, 10_000, []).text


@pytest.mark.parametrize("name", sorted(FORMS))
def test_the_form_is_the_one_in_which_the_template_writes_calls(name: str, tmp_path: Path) -> None:
    found = prompts_of(tools_folder(tmp_path / "model", *FORMS[name])).tool_form
    assert found.knows_tools
    assert not found.takes_text
    assert found.form.name == ("response_template" if name == "tags" else name)


def drawn(compiler: GuideCompiler, use: ToolUse, tokenizer: ModelTokenizer, seed: int) -> str:
    """The text of an output that a model without any preference makes under the guide."""
    assert use.guide is not None
    matcher, dice = compiler.compile(use.guide), random.Random(seed)
    detokenizer = tokenizer.detokenizer((), use.shown_tokens)
    text = ""
    for _ in range(2000):
        mask = matcher.compute_bitmask()
        allowed = [place * 8 + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        # Where it may go on, it does more often than not.
        token = dice.choice([one for one in allowed if one or dice.random() < 0.5] or allowed)
        if token == 0:
            break
        matcher.consume_token(token)
        text += detokenizer.push(token)
        if matcher.is_stopped():
            break
    assert matcher.is_accepting() or matcher.is_stopped(), text
    return text + detokenizer.finish()


@pytest.mark.parametrize("name", sorted(FORMS))
def test_outputs_that_are_held_to_calls_are_calls_of_the_tools_that_keep_to_their_schemas(
    name: str, tmp_path: Path
) -> None:
    folder = tools_folder(tmp_path / "model", *FORMS[name])
    compiler, tokenizer = GuideCompiler(folder), ModelTokenizer(folder)
    named = {"type": "function", "function": {"name": "weather"}}
    schemas = {"weather": arguments_schema(WEATHER["function"]["parameters"]), "clock": arguments_schema(None)}
    counts = []
    for seed in range(4):
        for how in ({"tool_choice": "required"}, {"tool_choice": "required", "parallel_tool_calls": True},
                    {"tool_choice": named}):  # fmt: skip
            use = use_of(folder, **how)
            message = whole_message(
                use, "<|im_start|>assistant\n<think>\n", drawn(compiler, use, tokenizer, seed), "id", 0
            )
            assert message["content"] is None
            for call in message["tool_calls"]:
                function = call["function"]
                jsonschema.validate(json.loads(function["arguments"]), schemas[function["name"]])
                assert function["name"] == "weather" or how["tool_choice"] == "required"
            counts.append(len(message["tool_calls"]))
            assert counts[-1] == 1 or "parallel_tool_calls" in how
    assert max(counts) > 1 or name == "Llama 3"


def test_no_tools_are_used_with_tool_choice_none(tmp_path: Path) -> None:
    folder = tools_folder(tmp_path / "model", BLIND)
    chat = read_chat(body(tool_choice="none"))
    assert tool_use(chat, prompts_of(folder), ModelTokenizer(folder)) is None


def test_a_model_that_is_shown_no_tools_says_so(tmp_path: Path) -> None:
    folder = tools_folder(tmp_path / "model", BLIND)
    with pytest.raises(RefusedBodyError, match="chat template shows it no tools") as refused:
        use_of(folder)
    assert (refused.value.param, refused.value.code) == ("tools", "tools_not_supported")


def test_a_damaged_response_template_is_a_sentence(tmp_path: Path) -> None:
    folder = tools_folder(tmp_path / "model", HERMES, {"fields": {}})
    said = load_response_template(folder)
    assert isinstance(said, str)
    assert "response_template.fields must be an object" in said
    with pytest.raises(RefusedBodyError, match=r"response_template\.fields"):
        tool_use(read_chat(body()), said, ModelTokenizer(folder))


def test_a_template_of_its_own_for_tools_is_taken_if_there_are_tools(tmp_path: Path) -> None:
    folder = tools_folder(tmp_path / "model", BLIND)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(HERMES)
    assert prompts_of(folder).tool_form.knows_tools
    (folder / "chat_template.jinja").unlink()
    listed = [{"name": "default", "template": BLIND}, {"name": "tool_use", "template": HERMES}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    assert prompts_of(folder).tool_form.knows_tools


def test_ids_are_short_for_templates_that_want_them_so(tmp_path: Path) -> None:
    text = "[TOOL_CALLS]clock[ARGS]{}"
    use = use_of(tools_folder(tmp_path / "model", *FORMS["Mistral with [ARGS]"]))
    (call,) = whole_message(use, "", text, "chatcmpl-1", 0)["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


def schema_of(**change: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, **change}
    return [WEATHER, {"type": "function", "function": {"name": "f", "parameters": parameters}}]


P = "tools[1].function.parameters"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [WEATHER] * 129}, "tools"),
        ({"tools": [WEATHER, {"type": "retrieval"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "code": 1}}]}, "tools[0].function.code"),
        ({"tools": [WEATHER, {"type": "function", "function": {"name": "a", "parameters": []}}]}, P),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": schema_of(type="string")}, f"{P}.type"),
        ({"tools": schema_of(type="text")}, f"{P}.type"),
        ({"tools": schema_of(properties=[])}, f"{P}.properties"),
        ({"tools": schema_of(properties={"a": {"type": "text"}})}, f"{P}.properties.a.type"),
        ({"tools": schema_of(properties={"a b": {"anyOf": []}})}, f"{P}.properties[a b].anyOf"),
        ({"tools": schema_of(required="a")}, f"{P}.required"),
        ({"tools": schema_of(items=3)}, f"{P}.items"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"messages": [QUESTION, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}]},
         "messages[0].tool_calls[0].function"),
    ],
)  # fmt: skip
def test_tools_are_refused_by_the_path_of_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedBodyError) as refused:
        read_chat(body(**fields))
    assert refused.value.param == param


def test_what_a_guide_could_not_follow_is_no_fault_of_a_schema_that_only_the_model_reads() -> None:
    chat = read_chat(body(tools=schema_of(properties={"a": {"not": {}, "format": "own", "x-note": 1}})))
    assert chat.tools is not None
