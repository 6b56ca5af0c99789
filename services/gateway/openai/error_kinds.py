"""What OpenAI's error objects call each error: `type`, `code`, and the `param` that it is about.

The REST front answers some errors itself (an unknown path, a body that is too large). It takes their names from
rest/edge_errors.json, which `make proto` writes from the table here.
"""

import json
from typing import NamedTuple

from services.domain.errors import (
    AdmissionFullError,
    ContextLengthError,
    DeadlineError,
    FastServeError,
    InvalidFieldError,
    NotReadyError,
    UnauthenticatedError,
    UnknownModelError,
)

_INVALID = "invalid_request_error"
_SERVER = "server_error"


class ErrorKind(NamedTuple):
    """How an error object classifies an error. None is null."""

    type: str
    code: str | None
    param: str | None = None


class RefusedBodyError(InvalidFieldError):
    """A request's body is refused. `param` is the client's own path of the field, None for the body as a whole."""

    def __init__(self, param: str | None, message: str, code: str) -> None:
        super().__init__(param or "body", message)
        self.param = param
        self.code = code


def kind_of(error: FastServeError) -> ErrorKind:
    """The classification of an error that ends a call."""
    if isinstance(error, RefusedBodyError):
        return ErrorKind(_INVALID, error.code, error.param)
    if isinstance(error, ContextLengthError):
        return ErrorKind(_INVALID, "context_length_exceeded", error.field)
    if isinstance(error, InvalidFieldError):
        return ErrorKind(_INVALID, "invalid_value", error.field)
    if isinstance(error, UnknownModelError):
        return ErrorKind(_INVALID, "model_not_found", "model")
    if isinstance(error, UnauthenticatedError):
        return _BY_HTTP_STATUS[401]
    if isinstance(error, AdmissionFullError):
        return _BY_HTTP_STATUS[429]
    if isinstance(error, NotReadyError):
        return _BY_HTTP_STATUS[503]
    if isinstance(error, DeadlineError):
        return _BY_HTTP_STATUS[504]
    return _BY_HTTP_STATUS[500]


_BY_HTTP_STATUS = {
    400: ErrorKind(_INVALID, "invalid_value"),
    401: ErrorKind(_INVALID, "invalid_api_key"),
    404: ErrorKind(_INVALID, "not_found"),
    405: ErrorKind(_INVALID, "method_not_allowed"),
    408: ErrorKind(_INVALID, "request_timeout"),
    409: ErrorKind(_INVALID, "conflict"),
    413: ErrorKind(_INVALID, "request_too_large"),
    415: ErrorKind(_INVALID, "unsupported_media_type"),
    429: ErrorKind("rate_limit_error", "rate_limit_exceeded"),
    499: ErrorKind(_INVALID, "request_cancelled"),
    500: ErrorKind(_SERVER, "internal_error"),
    503: ErrorKind(_SERVER, "unavailable"),
    504: ErrorKind(_SERVER, "deadline_exceeded"),
}


def edge_errors_document() -> str:
    """The content of rest/edge_errors.json."""
    kinds = {str(status): {"type": kind.type, "code": kind.code} for status, kind in _BY_HTTP_STATUS.items()}
    return json.dumps(kinds, indent=2) + "\n"
