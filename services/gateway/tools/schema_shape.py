"""Whether a JSON Schema is one at all, and if not, where: for schemas that only a model reads, in which keywords that
no guide could follow do no harm.
"""

from typing import Any

from services.gateway.guides.schema_keywords import GuideFault, Path, first_fault_of

TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_MAPS = ("$defs", "definitions", "properties", "patternProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")


def shape_fault(schema: dict[str, Any]) -> GuideFault | None:
    """The first place that makes it no schema; None if there is none."""
    return first_fault_of(schema, _own_fault)


def _own_fault(path: Path, schema: dict[str, Any]) -> GuideFault | None:
    for keyword, value in schema.items():
        wanted = _wanted(keyword, value)
        if wanted:
            return GuideFault((*path, keyword), wanted)
    return None


def _wanted(keyword: str, value: Any) -> str:
    """What a keyword must be; empty if it is so, or may be anything."""
    if keyword == "type":
        named = value if isinstance(value, list) and value else [value]
        if not all(isinstance(one, str) and one in TYPES for one in named):
            return f"must be one of {', '.join(sorted(TYPES))}, or several of them"
    elif keyword in _MAPS and not isinstance(value, dict):
        return "must be an object of schemas"
    elif keyword in _LISTS and not (isinstance(value, list) and value):
        return "must be a list of schemas, not empty"
    elif keyword == "required" and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return "must be a list of names"
    elif keyword == "enum" and not isinstance(value, list):
        return "must be a list of values"
    return ""
