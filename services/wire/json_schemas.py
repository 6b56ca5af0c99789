"""JSON Schemas of the public messages, as protobuf's JSON with the names of the protos writes and reads them."""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fastserve.v1 import admin_pb2, inference_pb2

_MESSAGES = (
    inference_pb2.GenerateRequest,
    inference_pb2.GenerateResponse,
    inference_pb2.ListModelsResponse,
    admin_pb2.GetStatusResponse,
    admin_pb2.WatchStatusResponse,
)
_WIDE = {"type": ["integer", "string"], "description": "64 bits: a string where JavaScript's numbers would not do"}
_SCALARS: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    FieldDescriptor.TYPE_INT64: _WIDE,
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    FieldDescriptor.TYPE_UINT64: _WIDE,
}


def message_schemas(template: str) -> dict[str, Any]:
    """The schemas by the names of the messages. `template` makes a reference of a name, with `{model}` in it."""
    found: dict[str, Any] = {}
    for message in _MESSAGES:
        _add(message.DESCRIPTOR, template, found)
    return found


def _add(message: Descriptor, template: str, found: dict[str, Any]) -> None:
    if message.name in found:
        return
    properties: dict[str, Any] = {}
    found[message.name] = {"type": "object", "properties": properties, "additionalProperties": False}
    for field in message.fields:
        properties[field.name] = _field(field, template, found)


def _field(field: FieldDescriptor, template: str, found: dict[str, Any]) -> dict[str, Any]:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _field(inner.fields_by_name["value"], template, found)}
    if inner is not None:
        _add(inner, template, found)
        one: dict[str, Any] = {"$ref": template.format(model=inner.name)}
    elif field.enum_type is not None:
        one = {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    else:
        one = _SCALARS[field.type]
    return {"type": "array", "items": one} if field.is_repeated else one
