"""Where, in the JSON of a region, a tool call has its name and its arguments.

It follows from the field's transform. Regions of another kind than plain JSON have no shape: they are read when they
are whole.
"""

import re
from dataclasses import dataclass
from typing import Any

from services.gateway.tools.json_walker import LIST, Path
from services.gateway.tools.response_template import PLACEHOLDER, FieldTemplate

_GREEDY = re.compile(r"(?<!\\)\.[*+](?!\?)")
_DIALECTS = ("string_delims", "unquoted_keys", "allow_non_json")


@dataclass(frozen=True, slots=True)
class CallShape:
    """`captured_name`: what the opening captures as the name; else it stands at `name`. The arguments stand at the
    first of `arguments` that is there. Paths begin at the region's value, or at each `item` of it if it is a list.
    `separators` may stand between several values. `is_marked` False: nothing but its form tells a call from other text,
    so it must name a tool of the request.
    """

    item: Path = ()
    name: Path = ("name",)
    arguments: tuple[Path, ...] = (("arguments",),)
    captured_name: str | None = None
    separators: str = ""
    is_marked: bool = True


def shape_of(field: FieldTemplate) -> CallShape | None:
    """The shape of a field's calls, if they can be read while they arrive."""
    function = field.transform.get("function") if isinstance(field.transform, dict) else None
    if field.content != "json" or any(field.content_args.get(one) for one in _DIALECTS):
        return None
    captured = frozenset() if field.opening is None else field.opening.groups
    item: Path = (LIST,) if field.transforms_each else ()
    if isinstance(function, dict):
        name, arguments = _place(field, function.get("name")), _place(field, function.get("arguments"))
        if arguments is None or name is None:
            group = _group(function.get("name"))
            if arguments is None or group not in captured or field.transforms_each:
                return None
            return CallShape(item, (), (arguments,), group)
        return CallShape(item, name, (arguments,)) if name else None
    whole = _place(field, function)
    return None if whole is None else CallShape(item, (*whole, "name"), ((*whole, "arguments"),))


def tags_name(field: FieldTemplate) -> str | None:
    """What the opening captures as the name of a call whose arguments are tags, if each tag stands when it is whole: a
    pattern that takes as much as it can, or joins tags, may change its mind.
    """
    function = field.transform.get("function") if isinstance(field.transform, dict) else None
    if field.content != "xml-inline" or not isinstance(function, dict) or function.get("arguments") != "{content}":
        return None
    options = field.content_args
    how = options.get("value_parser") or {}
    may_fail = how.get("name", "text") != "text" and not how.get("args", {}).get("allow_non_json")
    pattern = str(options.get("tag_pattern", ""))
    if may_fail or options.get("merge_duplicates") or "?P<key>" not in pattern or _GREEDY.search(pattern):
        return None
    group = _group(function.get("name"))
    return group if group is not None and field.opening is not None and group in field.opening.groups else None


def _group(value: Any) -> str | None:
    match = PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    return match.group(1) if match else None


def _place(field: FieldTemplate, value: Any) -> Path | None:
    """The path that a placeholder stands for; None if it is none, or stands for something captured."""
    name = _group(value)
    if name is None:
        return None
    root, *rest = name.split(".")
    if field.transforms_each:
        return None if field.opening is not None and root in field.opening.groups else (root, *rest)
    return tuple(rest) if root == "content" else None
