"""The part of a guide that holds the arguments of a call to tags, one for each argument.

A value that may be a text is written as it is: it ends where its tag does, and a schema can't say more of it than which
texts there are. Other values are JSON.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from services.gateway.guides.schema_keywords import DEFINITIONS
from services.gateway.tools.argument_types import types_of
from services.gateway.tools.call_frame import TagFrame

_OF_TEXTS = ("pattern", "format", "minLength", "maxLength")
_COMPOSED = ("$ref", "allOf", "not")
Path = tuple[str, ...]


class UnguidedSchemaError(Exception):
    """A schema says what tags can't be held to. `path` leads to the place."""

    def __init__(self, path: Path, keyword: str) -> None:
        super().__init__(f"keyword {keyword!r} can't be followed where a model writes arguments as tags")
        self.path = (*path, keyword)


def tag_rules(
    frame: TagFrame,
    prefix: str,
    schema: Mapping[str, Any],
    literal: Callable[[str], str],
    json_options: Mapping[str, Any],
) -> list[str]:
    """The rules of a grammar for these arguments; the first is `prefix`. Raises UnguidedSchemaError."""
    for keyword in (*_COMPOSED, "anyOf", "oneOf", "patternProperties"):
        if keyword in schema:
            raise UnguidedSchemaError((), keyword)
    shared = {name: schema[name] for name in DEFINITIONS if name in schema}
    properties: dict[str, Any] = {**dict.fromkeys(schema.get("required", ()), True), **schema.get("properties", {})}
    order = [*schema.get("properties", {}), *(name for name in properties if name not in schema.get("properties", {}))]
    tags, rules = [], []
    for place, name in enumerate(order):
        rule = f"{prefix}_{place}"
        value = _value(frame, rule, properties[name], ("properties", name), literal, {**shared}, json_options)
        rules += value
        tag = f"{literal(frame.before_key + name + frame.before_value)} {rule} {literal(frame.after_value)}".strip()
        tags.append(tag if name in schema.get("required", ()) else f"({tag})?")
    return [f"{prefix}: {' '.join(tags) or literal('') or _NOTHING}", *rules]


_NOTHING = '""'


def _value(
    frame: TagFrame,
    rule: str,
    schema: Any,
    path: Path,
    literal: Callable[[str], str],
    shared: Mapping[str, Any],
    json_options: Mapping[str, Any],
) -> list[str]:
    """The rules for a value and what ends it."""
    given: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    types = types_of(given)
    choices = [given["const"]] if "const" in given else given.get("enum")
    end = literal(frame.value_end)
    if choices is not None:
        if not types and not all(isinstance(one, str) for one in choices):
            raise UnguidedSchemaError(path, "const" if "const" in given else "enum")
        texts = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in choices)
        return [f"{rule}: ({' | '.join(literal(text) or _NOTHING for text in texts)}) {end}"]
    if not types or "string" in types:
        for keyword in (*_COMPOSED, *_OF_TEXTS):
            if keyword in given:
                raise UnguidedSchemaError(path, keyword)
        ending = json.dumps(frame.value_end.strip(), ensure_ascii=False)
        return [f"{rule}[suffix={ending}]: /(?s:.*)/"]
    as_json = {"x-guidance": dict(json_options), **shared, **given}
    return [f"{rule}: {rule}_json {end}", f"{rule}_json: %json {json.dumps(as_json, ensure_ascii=False)}"]
