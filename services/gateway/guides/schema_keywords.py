"""Which keywords of JSON Schema a guide may use, and where a schema uses another one.

llguidance follows those of draft 2020-12 that are listed here. Others are refused, also unknown ones: an output must be
one that any validator of the schema accepts, and a misspelt keyword should be noticed. Pure.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MOST_LEVELS = 64
"""Levels of schemas within schemas."""

DEFINITIONS = ("$defs", "definitions")
_MAPS = (*DEFINITIONS, "properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("additionalProperties", "items")
_ASSERTIONS = """
    $ref const enum exclusiveMaximum exclusiveMinimum format maxItems maxLength maxProperties maximum minItems minLength
    minProperties minimum multipleOf pattern required type
"""
_NOTES = "$comment $id $schema default deprecated description examples readOnly title writeOnly"
"""Change nothing."""
KEYWORDS = frozenset((*_MAPS, *_LISTS, *_SINGLE, *_ASSERTIONS.split(), *_NOTES.split()))

Path = tuple[str | int, ...]


class GuideFault(NamedTuple):
    """What is wrong with a guide. `path` leads from the schema to the place."""

    path: Path
    reason: str


def parts_of(schema: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The schemas directly within a schema, those of definitions first."""
    for keyword in _MAPS:
        if isinstance(within := schema.get(keyword), dict):
            for name, part in within.items():
                yield (keyword, name), part
    for keyword in (*_LISTS, *_SINGLE):
        within = schema.get(keyword)
        if isinstance(within, list):
            for place, part in enumerate(within):
                yield (keyword, place), part
        elif keyword in schema:
            yield (keyword,), within


def first_fault(schema: Any) -> GuideFault | None:
    """The first keyword or place that can't be used; None if there is none."""
    return first_fault_of(schema, _own_fault)


def first_fault_of(schema: Any, own_fault: Callable[[Path, dict[str, Any]], GuideFault | None]) -> GuideFault | None:
    """The first place that is no schema, lies too deep, or of which `own_fault` says what is wrong with it, apart from
    the schemas within; None if there is none.
    """
    left: list[tuple[Path, Any, int]] = [((), schema, 1)]
    while left:
        path, present, level = left.pop()
        if isinstance(present, bool):
            continue
        if not isinstance(present, dict):
            return GuideFault(path, "must be a schema: an object, true or false")
        if level > MOST_LEVELS:
            return GuideFault(path, f"lies more than {MOST_LEVELS} levels deep")
        fault = own_fault(path, present)
        if fault is not None:
            return fault
        parts = [((*path, *steps), part, level + 1) for steps, part in parts_of(present)]
        left.extend(reversed(parts))
    return None


def _own_fault(path: Path, schema: dict[str, Any]) -> GuideFault | None:
    for keyword, value in schema.items():
        if keyword not in KEYWORDS:
            return GuideFault((*path, keyword), f"keyword {keyword[:64]!r} is not supported")
        if keyword in _MAPS and not isinstance(value, dict):
            return GuideFault((*path, keyword), f"keyword {keyword!r} must be an object of schemas")
        if keyword in _LISTS and not (isinstance(value, list) and value):
            return GuideFault((*path, keyword), f"keyword {keyword!r} must be a list of schemas, not empty")
    return None
