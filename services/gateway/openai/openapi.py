"""The description of the REST interface in OpenAPI 3.1: OpenAI's routes from the models that validate requests, our own
from the protos.
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
from services.wire.json_schemas import message_schemas

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
_API_KEY = "apiKey"
_TEMPLATE = "#/components/schemas/{model}"
_REFUSALS = {
    400: "the request is invalid: `param` names the field",
    401: "the server asks for API keys, and the request has none that is valid",
    404: "there is no such model",
    413: "the body is too large",
    415: "the body is not JSON in UTF-8",
    429: "the server is full, or a limit of the API key is reached: wait as long as Retry-After says",
    500: "a bug of the server",
    503: "the server is not ready, or shuts down: wait as long as Retry-After says",
    504: "the deadline in Grpc-Timeout passed",
}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return _named(model.__name__)


def _named(name: str) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(model=name)}


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
        "/v1/models": _reading("The served models", _reference(ModelListObject), 400, 401, 503),
        "/v1/models/{model}": {
            "parameters": [model],
            **_reading("One model", _reference(ModelObject), 400, 401, 404, 503),
        },
        "/fastserve/v1/generate": _writing(
            "InferenceService.Generate", _named("GenerateRequest"), _content(line, lines)
        ),
        "/fastserve/v1/models": _reading("InferenceService.ListModels", _named("ListModelsResponse"), 400, 401, 503),
        "/fastserve/v1/status": _reading("AdminService.GetStatus", _named("GetStatusResponse"), 400, 401, 503),
        "/fastserve/v1/status:watch": _reading("AdminService.WatchStatus", line, 400, 401, 503, kind=lines),
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
            # A server may ask for keys, or not.
            "security": [{}, {_API_KEY: []}],
            "components": {
                "schemas": {**message_schemas(_TEMPLATE), **definitions["$defs"]},
                "securitySchemes": {_API_KEY: {"type": "http", "scheme": "bearer"}},
            },
        }
    )
