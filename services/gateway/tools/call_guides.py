"""The guide that holds an output to tool calls in a folder's form: a grammar in which the arguments of each tool are
what its schema allows.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from services.domain.guide import Guide, GuideKind
from services.gateway.tools.call_frame import CallFrame, TagFrame
from services.gateway.tools.tag_guides import UnguidedSchemaError, tag_rules

MOST_CALLS = 16
"""In an output that is held to calls."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_COMPOSING = frozenset(["additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"])


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, without other properties if the schema is silent on them."""
    if parameters is None:
        return dict(NO_PARAMETERS)
    schema = {**parameters, "type": "object"}
    if "properties" in schema and not _COMPOSING & schema.keys():
        schema["additionalProperties"] = False
    return schema


class UnguidedToolError(Exception):
    """An output can't be held to calls of a tool; `path` leads from its parameters to the reason."""

    def __init__(self, tool: str, error: UnguidedSchemaError) -> None:
        super().__init__(str(error))
        self.tool = tool
        self.path = error.path


def calls_guide(
    frame: CallFrame | TagFrame,
    tools: Sequence[tuple[str, Mapping[str, Any] | None]],
    special_tokens: Mapping[str, int],
    several: bool,
    json_options: Mapping[str, Any],
) -> Guide:
    """`tools`: names and parameters of those that may be called. `special_tokens`: ids of the tokens that are no text.
    `several`: whether there may be more calls than one. `json_options`: llguidance's, for the arguments. Raises
    UnguidedToolError.
    """

    def literal(text: str) -> str:
        return _literal(text, special_tokens)

    rules, calls = [], []
    for place, (name, parameters) in enumerate(tools):
        schema = arguments_schema(parameters)
        if isinstance(frame, TagFrame):
            try:
                rules += tag_rules(frame, f"arguments_{place}", schema, literal, json_options)
            except UnguidedSchemaError as error:
                raise UnguidedToolError(name, error) from None
        else:
            schema = {"x-guidance": dict(json_options), **schema}
            rules.append(f"arguments_{place}: %json {json.dumps(schema, ensure_ascii=False)}")
        before = literal(frame.before_name + name + frame.before_arguments)
        calls.append(f"{before} arguments_{place} {literal(frame.after_arguments)}")
    more = ""
    if several and frame.between is not None:
        more = f" ({literal(frame.between)} call){{0,{MOST_CALLS - 1}}}"
    start = f"start: {literal(frame.start)} call{more} {literal(frame.end)}"
    return Guide(GuideKind.GRAMMAR, "\n".join((start, "call: " + "\n  | ".join(calls), *rules)) + "\n")


def _literal(text: str, special_tokens: Mapping[str, int]) -> str:
    """A text in a grammar, in which special tokens stand by their ids."""
    either = "|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True))) or "(?!)"
    pieces = re.split(f"({either})", text)
    return " ".join(
        f"<[{special_tokens[piece]}]>" if place % 2 else json.dumps(piece, ensure_ascii=False)
        for place, piece in enumerate(pieces)
        if piece
    )
