"""The guides in a body: `response_format` of chats, and the fields beside it that other servers know too."""

import json
from typing import Any

from services.domain.guide import Guide, GuideKind
from services.gateway.openai.requests import ChatBody, CompletionBody


def guides_in(body: CompletionBody | ChatBody) -> list[tuple[Guide, str]]:
    """Each guide with the client's path of it. Only the first is followed."""
    found: list[tuple[Guide, str]] = []
    if isinstance(body, ChatBody) and body.response_format is not None:
        if body.response_format.type == "json_object":
            found.append((Guide(GuideKind.JSON_OBJECT), "response_format"))
        elif body.response_format.json_schema is not None:
            found.append((_of_schema(body.response_format.json_schema.schema_), "response_format.json_schema.schema"))
    if body.guided_json is not None:
        found.append((_of_schema(body.guided_json), "guided_json"))
    if body.guided_regex is not None:
        found.append((Guide(GuideKind.REGEX, body.guided_regex), "guided_regex"))
    if body.guided_grammar is not None:
        found.append((Guide(GuideKind.GRAMMAR, body.guided_grammar), "guided_grammar"))
    if body.guided_choice is not None:
        found.append((Guide(GuideKind.CHOICE, choices=tuple(body.guided_choice)), "guided_choice"))
    return found


def _of_schema(schema: dict[str, Any]) -> Guide:
    """Properties stay in the client's order, in which the output will have them."""
    return Guide(GuideKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
