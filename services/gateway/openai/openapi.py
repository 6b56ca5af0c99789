"""The description of the REST interface in OpenAPI 3.1, made from the models that validate requests.

FastServe's own routes are those of the protos, and described there; the description names them without their fields.
"""

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.gateway.openai.answer_models import (
    ChatChunkObject,
    ChatObject,
    CompletionObject,
    ErrorDocument,
    HealthObject,
    ModelListObject,
    ModelObject,
)
from services.gateway.openai.answer_shapes import EVENTS, JSON, document
from services.gateway.openai.requests import ChatBody, CompletionBody

_MODELS: tuple[type[BaseModel], ...] = (
    ChatBody,
    ChatChunkObject,
    ChatObject,
    CompletionBody,
    CompletionObject,
    ErrorDocument,
    HealthObject,
    ModelListObject,
    ModelObject,
)
_TEMPLATE = "#/components/schemas/{model}"
_REFUSALS = {
    400: "the request is invalid: `param` names the field",
    404: "there is no such model",
    413: "the body is too large",
    415: "the body is not JSON in UTF-8",
    429: "the server is full: wait as long as Retry-After says",
    500: "a bug of the server",
    503: "the server is not ready, or shuts down: wait as long as Retry-After says",
    504: "the deadline in Grpc-Timeout passed",
}
_PROTO_JSON = {"type": "object", "description": "the message of the protos as JSON, with their names"}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(model=model.__name__)}


def _content(schema: dict[str, Any], kind: str = JSON) -> dict[str, Any]:
    return {kind: {"schema": schema}}


def _refused(*statuses: int) -> dict[str, Any]:
    shape = _content(_reference(ErrorDocument))
    return {str(status): {"description": _REFUSALS[status], "content": shape} for status in statuses}


def _reading(summary: str, schema: dict[str, Any], *refusals: int, kind: str = JSON) -> dict[str, Any]:
    answer = {"description": summary, "content": _content(schema, kind)}
    return {"get": {"summary": summary, "responses": {"200": answer, **_refused(*refusals)}}}


def _writing(summary: str, body: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": _content(body)},
            "responses": {"200": {"description": summary, "content": answers}, **_refused(*_REFUSALS)},
        }
    }


def _events(chunk: type[BaseModel]) -> dict[str, Any]:
    text = {"type": "string", "description": f"events, each a {chunk.__name__} as JSON; the last is [DONE]"}
    return _content(text, EVENTS)


def _paths() -> dict[str, Any]:
    lines = "application/x-ndjson"
    line = {"type": "string", "description": 'a line {"result": message} for each message of the stream'}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "/v1/completions": _writing(
            "Continue prompts",
            _reference(CompletionBody),
            {**_content(_reference(CompletionObject)), **_events(CompletionObject)},
        ),
        "/v1/chat/completions": _writing(
            "Answer a conversation",
            _reference(ChatBody),
            {**_content(_reference(ChatObject)), **_events(ChatChunkObject)},
        ),
        "/v1/models": _reading("The served models", _reference(ModelListObject), 503),
        "/v1/models/{model}": {"parameters": [model], **_reading("One model", _reference(ModelObject), 400, 404, 503)},
        "/fastserve/v1/generate": _writing("InferenceService.Generate", _PROTO_JSON, _content(line, lines)),
        "/fastserve/v1/models": _reading("InferenceService.ListModels", _PROTO_JSON, 503),
        "/fastserve/v1/status": _reading("AdminService.GetStatus", _PROTO_JSON, 503),
        "/fastserve/v1/status:watch": _reading("AdminService.WatchStatus", line, 400, 503, kind=lines),
        "/healthz": _reading("Whether this process lives", _reference(HealthObject)),
        "/readyz": _reading("Whether a request would be taken", _reference(HealthObject), 503),
        "/health": _reading("As /readyz", _reference(HealthObject), 503),
        "/metrics": _reading("The gateway's metrics", {"type": "string"}, 404, 503, kind="text/plain"),
        "/openapi.json": _reading("This description", {"type": "object"}, 503),
    }


@cache
def openapi_document() -> bytes:
    """The description as JSON."""
    _, definitions = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_TEMPLATE)
    return document(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "FastServe",
                "version": "1",
                "description": "The OpenAI API of a FastServe gateway. Unknown fields are refused; null is absent.",
            },
            "paths": _paths(),
            "components": {"schemas": definitions["$defs"]},
        }
    )
