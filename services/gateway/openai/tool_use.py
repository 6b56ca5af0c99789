"""How one request uses tools: what the template shows of them, what the output is held to, and how it is read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.domain.guide import JSON_OPTIONS, Guide, GuideKind
from services.gateway.guides.guide_checker import path_text
from services.gateway.model_tokenizer import ModelTokenizer
from services.gateway.openai.chat_prompt import ChatPrompts
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.requests import ChatBody, NamedToolChoice, Tool
from services.gateway.tools.answer_reader import AnswerReader
from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.call_forms import CallForm
from services.gateway.tools.call_guides import UnguidedToolError, calls_guide


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools`: as the client gave them. `guide`: what the output is held to, if calls are required; `schemas`: those
    in it, with the client's paths. `most_calls` None: as many as the model makes. `shown_tokens`: special tokens that
    the form of calls consists of.
    """

    tools: Sequence[dict[str, Any]]
    form: CallForm
    types: ToolTypes
    guide: Guide | None
    schemas: Sequence[tuple[str, Guide]]
    most_calls: int | None
    shown_tokens: frozenset[str]

    def reader(self, prompt: str) -> AnswerReader:
        """A reader of an answer to this prompt. An output that is held to calls begins with one."""
        return AnswerReader(self.form, self.types, "" if self.guide is not None else prompt, self.most_calls)


def tool_use(body: ChatBody, prompts: ChatPrompts | str, tokenizer: ModelTokenizer) -> ToolUse | None:
    """None if the request has no tools, or wants no calls. `prompts`: those for tools, or why there are none. Raises
    RefusedBodyError if the model can't use tools.
    """
    if not body.tools or body.tool_choice == "none":
        return None
    if isinstance(prompts, str):
        raise RefusedBodyError("tools", prompts, "chat_template_missing")
    folder = prompts.tool_form
    if not folder.knows_tools:
        raise RefusedBodyError(
            "tools",
            "the model's chat template shows it no tools: it has nothing that writes the variable 'tools'",
            "tools_not_supported",
        )
    form = folder.form
    called = _called(body, body.tools)
    special = tokenizer.special_token_ids
    shown = form.shown_tokens(tuple(special))
    guide, schemas = None, list[tuple[str, Guide]]()
    if called:
        if form.frame is None:
            raise RefusedBodyError(
                "tool_choice",
                f"must be auto or none: how the model writes calls ({form.name}) can't be put into a guide",
                "tools_not_supported",
            )
        several = body.parallel_tool_calls is True and not isinstance(body.tool_choice, NamedToolChoice)
        functions = [(tool.function.name, tool.function.parameters) for _, tool in called]
        marks = {token: special[token] for token in shown}
        try:
            guide = calls_guide(form.frame, functions, marks, several, JSON_OPTIONS)
        except UnguidedToolError as error:
            place = next(place for place, tool in called if tool.function.name == error.tool)
            path = f"tools[{place}].function.parameters{path_text(error.path)}"
            raise RefusedBodyError(path, str(error), "invalid_value") from None
        for place, tool in called:
            if tool.function.parameters:
                text = json.dumps(tool.function.parameters, ensure_ascii=False, separators=(",", ":"))
                schemas.append((f"tools[{place}].function.parameters", Guide(GuideKind.JSON_SCHEMA, text)))
    given = [tool.given for tool in body.tools]
    most_calls = 1 if body.parallel_tool_calls is False or isinstance(body.tool_choice, NamedToolChoice) else None
    return ToolUse(given, form, ToolTypes(given), guide, schemas, most_calls, shown)


def _called(body: ChatBody, tools: Sequence[Tool]) -> list[tuple[int, Tool]]:
    """The tools of which one must be called, with their places; none if no call is required."""
    numbered = list(enumerate(tools))
    if isinstance(body.tool_choice, NamedToolChoice):
        name = body.tool_choice.function.name
        return [(place, tool) for place, tool in numbered if tool.function.name == name]
    return numbered if body.tool_choice == "required" else []
