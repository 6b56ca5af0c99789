"""What the text of a region stands for: its content as the field's template reads it, put into the template's form.

The kinds and their options are those of transformers' response templates.
"""

import json
from collections.abc import Mapping
from typing import Any

import regex

from services.gateway.tools.regions import Closed
from services.gateway.tools.response_template import PLACEHOLDER

_MARK, _MARK_END = "\x01", "\x02"


class UnreadableRegionError(Exception):
    """The text of a region is not what the template says; says why."""


def value_of(region: Closed) -> Any:
    """The value of a region. Raises UnreadableRegionError."""
    field = region.field
    try:
        value = _content(region.body, field.content, field.content_args)
        if field.transform is None:
            return value
        if not field.transforms_each:
            return _filled(field.transform, {**region.captures, "content": value})
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise UnreadableRegionError(f"{field.name} must be a list of objects")
        return [_filled(field.transform, {**region.captures, **one}) for one in value]
    except (ValueError, RecursionError) as error:
        raise UnreadableRegionError(f"{field.name} is no {field.content}: {error}") from None


def _content(text: str, kind: str, options: Mapping[str, Any]) -> Any:
    shown = text.strip() if options.get("strip", True) else text
    match kind:
        case "text":
            return shown
        case "int":
            return int(shown)
        case "float":
            return float(shown)
        case "bool":
            return shown.lower() in ("true", "1")
        case "json":
            return _json(text, shown, options)
        case "xml-inline":
            return _tags(text, options)
        case _:
            return _lines(text, options)


def _json(text: str, shown: str, options: Mapping[str, Any]) -> Any:
    """JSON, also with strings between other marks than quotes, and with keys without quotes."""
    delimiters = options.get("string_delims", [])
    working, strings = text, list[str]()
    if delimiters and (_MARK in text or _MARK_END in text):
        raise UnreadableRegionError("it has a control character that can't be in it")
    for begin, end in delimiters:

        def kept(match: Any) -> str:
            strings.append(match.group(1))
            return f"{_MARK}{len(strings) - 1}{_MARK_END}"

        working = regex.sub(f"{regex.escape(begin)}(.*?){regex.escape(end)}", kept, working, flags=regex.DOTALL)
    if options.get("unquoted_keys", False):
        working = regex.sub(r"(?<=[{,])(\w+):", r'"\1":', working)
    for place, string in enumerate(strings):
        working = working.replace(f"{_MARK}{place}{_MARK_END}", json.dumps(string))
    try:
        return json.loads(working)
    except json.JSONDecodeError:
        if options.get("allow_non_json"):
            return shown
        raise


def _tags(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    pattern = options.get("tag_pattern")
    if pattern is None:
        raise UnreadableRegionError("its template has no tag_pattern")
    found: dict[str, Any] = {}
    for match in regex.finditer(pattern, text, flags=regex.DOTALL):
        groups = match.groupdict()
        key = groups.get("key")
        if key is None:
            raise UnreadableRegionError("the tag_pattern of its template captures no key")
        value = _part(groups.get("value", ""), options)
        if key in found and options.get("merge_duplicates", False):
            known = found[key]
            found[key] = [*(known if isinstance(known, list) else [known]), value]
        else:
            found[key] = value
    return found


def tag_value(text: str | None, options: Mapping[str, Any]) -> Any:
    """The value of a tag by itself. Raises UnreadableRegionError."""
    return _part(text or "", options)


def _lines(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    strips, between = options.get("strip", True), options.get("kv_sep", ":")
    found: dict[str, Any] = {}
    for given in text.split(options.get("line_sep", "\n")):
        line = given.strip() if strips else given
        if between in line:
            key, _, value = line.partition(between)
            found[key.strip() if strips else key] = _part(value.strip() if strips else value, options)
    return found


def _part(text: str, options: Mapping[str, Any]) -> Any:
    how = options.get("value_parser")
    return text if how is None else _content(text, how.get("name", "text"), how.get("args", {}))


def _filled(transform: Any, values: Mapping[str, Any]) -> Any:
    """The transform with values in the place of its placeholders."""
    if isinstance(transform, dict):
        return {key: _filled(one, values) for key, one in transform.items()}
    if isinstance(transform, list):
        return [_filled(one, values) for one in transform]
    placeholder = PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if placeholder is None:
        return transform
    found: Any = values
    for key in placeholder.group(1).split("."):
        if not isinstance(found, Mapping) or key not in found:
            raise UnreadableRegionError(f"it has no {placeholder.group(1)!r}")
        found = found[key]
    return found
