"""A whole answer as a message, as transformers' `parse_response` gives it."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.region_values import UnreadableRegionError, value_of
from services.gateway.tools.regions import Closed, Regions
from services.gateway.tools.response_template import ResponseTemplate


def parse_response(
    text: str, template: ResponseTemplate, prompt: str = "", tools: ToolTypes | None = None
) -> dict[str, Any]:
    """The message. Raises UnreadableRegionError."""
    regions = Regions(template, prompt)
    message: dict[str, Any] = deepcopy(dict(template.defaults))
    for event in (*regions.begun, *regions.feed(text), *regions.finish()):
        if isinstance(event, Closed):
            _add(message, event, tools or ToolTypes())
    missing = [name for name, field in template.fields.items() if not field.is_optional and name not in message]
    if missing:
        raise UnreadableRegionError(f"the answer has no {missing[0]}")
    return {name: value for name, value in message.items() if name in template.defaults or not _is_empty(value)}


def _add(message: dict[str, Any], region: Closed, tools: ToolTypes) -> None:
    field = region.field
    value = tools.cast_calls(value_of(region))
    if field.join is not None:
        if not isinstance(value, str):
            raise UnreadableRegionError(f"{field.name} must be text to be joined")
        known = message.get(field.name)
        message[field.name] = value if known is None else known + field.join + value
    elif field.repeats:
        message.setdefault(field.name, []).append(value)
    else:
        message[field.name] = value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | Mapping) and not value)
