"""Turns texts into the types that a tool's schema gives its parameters: some models write all arguments as text.

The rules are those of transformers' parser: the types of a parameter are tried in their order, and a text that is none
of them stays a text.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

NOT_CAST: Final = object()


def types_of(schema: Any) -> tuple[str, ...]:
    """The types that a schema names, those of its alternatives too."""
    if not isinstance(schema, Mapping):
        return ()
    own = schema.get("type")
    named = own if isinstance(own, list) else [own]
    found = [one for one in named if isinstance(one, str)]
    for union in ("anyOf", "oneOf"):
        for part in schema.get(union) or ():
            found.extend(types_of(part))
    if schema.get("nullable") and "null" not in found:
        found.append("null")
    return tuple(found)


class ToolTypes:
    """The types of the parameters of all tools of a request."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._types: dict[str, dict[str, tuple[str, ...]]] = {}
        for tool in tools:
            function = tool.get("function", tool)
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            known = properties if isinstance(properties, Mapping) else {}
            self._types[function["name"]] = {name: types_of(schema) for name, schema in known.items()}

    def __contains__(self, tool: str) -> bool:
        return tool in self._types

    def may_change(self, tool: str, parameter: str) -> str:
        """The characters with which JSON begins that `cast` may change."""
        types = self._of(tool, parameter)
        if all(one == "string" for one in types):
            return ""
        return '"' if "array" in types else '"['

    def cast(self, tool: str, parameter: str, value: Any) -> Any:
        """The value of a parameter in its type."""
        types = self._of(tool, parameter)
        if not types:
            return value
        if isinstance(value, str):
            return _cast(value, types)
        if isinstance(value, list) and "array" not in types:
            # The values of a parameter that was given several times.
            return [_cast(one, types) if isinstance(one, str) else one for one in value]
        return value

    def cast_all(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments in their types."""
        return {name: self.cast(tool, name, value) for name, value in arguments.items()}

    def cast_calls(self, value: Any) -> Any:
        """The value of a region, with the arguments of the calls in it in their types."""
        if isinstance(value, list):
            return [self.cast_calls(one) for one in value]
        function = value.get("function") if isinstance(value, dict) else None
        if not isinstance(function, dict):
            return value
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return value
        return {**value, "function": {**function, "arguments": self.cast_all(name, arguments)}}

    def _of(self, tool: str, parameter: str) -> tuple[str, ...]:
        return self._types.get(tool, {}).get(parameter, ())


def _cast(text: str, types: tuple[str, ...]) -> Any:
    for name in types:
        try:
            value = _as(name, text)
        except (ValueError, OverflowError, RecursionError):
            continue
        if value is not NOT_CAST:
            return value
    return text


def _as(name: str, text: str) -> Any:
    """The text as this type; NOT_CAST or ValueError if it is none."""
    bare = text.strip()
    match name:
        case "integer":
            try:
                return int(text)
            except ValueError:
                number = float(text)
                return int(number) if number.is_integer() else NOT_CAST
        case "number":
            number = float(text)
            if not math.isfinite(number):
                return NOT_CAST
            return int(number) if number.is_integer() and "." not in text else number
        case "boolean":
            known = {"true": True, "1": True, "false": False, "0": False}
            return known.get(bare.lower(), NOT_CAST)
        case "null":
            return None if bare in ("null", "None") else NOT_CAST
        case "object" | "array":
            value = json.loads(text)
            return value if isinstance(value, dict if name == "object" else list) else NOT_CAST
        case _:
            return NOT_CAST
