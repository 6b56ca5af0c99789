"""The one table of errors and gRPC statuses, used in both directions.

`status_of` and `error_of` convert a typed error to an ErrorStatus (code, message, field, time to wait) and back.
`to_grpc` and `from_grpc` convert between an ErrorStatus and the wire, with google.rpc details: BadRequest names the
field, PreconditionFailure what differs, RetryInfo how long to wait, ErrorInfo how a lost stream is resumed. An error
that is not in the table becomes INTERNAL; a code that is not in the table comes back as PeerFailedError.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.domain.errors import (
    AdmissionFullError,
    DeadlineError,
    DuplicateRequestError,
    FastServeError,
    InvalidFieldError,
    NotReadyError,
    PeerFailedError,
    PeerMismatchError,
    StreamLostError,
    SupersededError,
    UnauthenticatedError,
    UnknownModelError,
    UnreachableError,
)

MOST_MESSAGE_BYTES = 1000
"""Messages travel in HTTP/2 trailers, twice and encoded, and trailers are limited to 8 KiB: longer ones are cut off."""

_DETAILS_KEY = "grpc-status-details-bin"
OWN_DOMAIN = "fastserve"
STREAM_LOST = "STREAM_LOST"


class ErrorInformation(NamedTuple):
    """A google.rpc.ErrorInfo: what another interface calls the error. `domain` is that interface."""

    reason: str
    domain: str
    metadata: Mapping[str, str]


class ErrorStatus(NamedTuple):
    """The content of a status. `field` and `retry_after_s` are None for codes without them."""

    code: grpc.StatusCode
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    information: ErrorInformation | None = None


class _Row(NamedTuple):
    kind: type[FastServeError]
    code: grpc.StatusCode
    build: Callable[[ErrorStatus], FastServeError]


_DEFAULT_RETRY_S = 1.0


def _not_ready(status: ErrorStatus) -> NotReadyError:
    said = status.information
    if status.retry_after_s is None:
        return UnreachableError(status.message)
    if said is not None and (said.reason, said.domain) == (STREAM_LOST, OWN_DOMAIN):
        reason, number = status.message.partition("; to resume")[0], said.metadata.get("resume_from_token", "")
        request_id = said.metadata.get("request_id", "")
        return StreamLostError(reason, status.retry_after_s, request_id, int(number) if number.isdecimal() else 0)
    return NotReadyError(status.message, status.retry_after_s)


_TABLE = (
    _Row(
        InvalidFieldError,
        grpc.StatusCode.INVALID_ARGUMENT,
        lambda status: InvalidFieldError(status.field or "request", status.message),
    ),
    _Row(UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, lambda status: UnauthenticatedError(status.message)),
    _Row(UnknownModelError, grpc.StatusCode.NOT_FOUND, lambda status: UnknownModelError(status.message)),
    _Row(DuplicateRequestError, grpc.StatusCode.ALREADY_EXISTS, lambda status: DuplicateRequestError(status.message)),
    _Row(
        AdmissionFullError,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        lambda status: AdmissionFullError(status.message, status.retry_after_s or _DEFAULT_RETRY_S),
    ),
    _Row(NotReadyError, grpc.StatusCode.UNAVAILABLE, _not_ready),
    _Row(
        PeerMismatchError,
        grpc.StatusCode.FAILED_PRECONDITION,
        lambda status: PeerMismatchError(status.field or "peer", status.message),
    ),
    _Row(SupersededError, grpc.StatusCode.ABORTED, lambda status: SupersededError(status.message)),
    _Row(DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED, lambda status: DeadlineError(status.message)),
)
_BY_CODE = {row.code: row for row in _TABLE}


def code_of_number(number: int) -> grpc.StatusCode:
    """The gRPC code of a google.rpc.Code; UNKNOWN for an invalid number."""
    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)


def number_of_code(code: grpc.StatusCode) -> int:
    """The google.rpc.Code of a gRPC code."""
    number: int = code.value[0]
    return number


def status_of(error: FastServeError) -> ErrorStatus:
    """The status that reports the error to a client."""
    message = str(error)
    row = next((row for row in _TABLE if isinstance(error, row.kind)), None)
    if row is None:
        return ErrorStatus(grpc.StatusCode.INTERNAL, message)
    if isinstance(error, InvalidFieldError | PeerMismatchError):
        return ErrorStatus(row.code, message.removeprefix(f"{error.field}: "), field=error.field)
    if isinstance(error, StreamLostError):
        metadata = {"request_id": error.request_id, "resume_from_token": str(error.resume_from_token)}
        information = ErrorInformation(STREAM_LOST, OWN_DOMAIN, metadata)
        return ErrorStatus(row.code, message, retry_after_s=error.retry_after_s, information=information)
    if isinstance(error, AdmissionFullError | NotReadyError):
        return ErrorStatus(row.code, message, retry_after_s=error.retry_after_s)
    return ErrorStatus(row.code, message)


def error_of(status: ErrorStatus) -> FastServeError:
    """The inverse of status_of for the errors in the table."""
    row = _BY_CODE.get(status.code)
    if row is None:
        return PeerFailedError(f"{status.code.name}: {status.message}")
    return row.build(status)


def _details(status: ErrorStatus) -> list[Any]:
    details: list[Any] = []
    if status.code is grpc.StatusCode.INVALID_ARGUMENT:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=status.field or "request", description=status.message)
        details.append(bad)
    elif status.code is grpc.StatusCode.FAILED_PRECONDITION:
        failure = error_details_pb2.PreconditionFailure()
        failure.violations.add(type="MISMATCH", subject=status.field or "peer", description=status.message)
        details.append(failure)
    if status.retry_after_s is not None:
        whole_s = math.floor(status.retry_after_s)
        delay = duration_pb2.Duration(seconds=whole_s, nanos=int((status.retry_after_s - whole_s) * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if status.information is not None:
        reason, domain, metadata = status.information
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    return details


def to_grpc(status: ErrorStatus) -> grpc.Status:
    """A status for `context.abort_with_status`; also used for its parts: code, details, trailing metadata."""
    return rpc_status.to_status(to_status(status))


def to_status(status: ErrorStatus) -> status_pb2.Status:
    """A status as a message."""
    bounded = status._replace(
        message=status.message.encode("utf-8", "replace")[:MOST_MESSAGE_BYTES].decode("utf-8", "ignore")
    )
    text = bounded.message if bounded.field is None else f"{bounded.field}: {bounded.message}"
    message = status_pb2.Status(code=number_of_code(bounded.code), message=text)
    for detail in _details(bounded):
        packed = any_pb2.Any()
        packed.Pack(detail)
        message.details.append(packed)
    return message


def _read_details(message: status_pb2.Status, status: ErrorStatus) -> ErrorStatus:
    for packed in message.details:
        bad, failure, retry, said = (
            error_details_pb2.BadRequest(),
            error_details_pb2.PreconditionFailure(),
            error_details_pb2.RetryInfo(),
            error_details_pb2.ErrorInfo(),
        )
        if packed.Unpack(bad) and bad.field_violations:
            violation = bad.field_violations[0]
            status = status._replace(field=violation.field, message=violation.description)
        elif packed.Unpack(failure) and failure.violations:
            mismatch = failure.violations[0]
            status = status._replace(field=mismatch.subject, message=mismatch.description)
        elif packed.Unpack(retry):
            status = status._replace(retry_after_s=retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
        elif packed.Unpack(said):
            status = status._replace(information=ErrorInformation(said.reason, said.domain, dict(said.metadata)))
    return status


def from_grpc(error: grpc.aio.AioRpcError) -> FastServeError:
    """The typed error of a failed call. UNAVAILABLE without RetryInfo comes from the transport: UnreachableError."""
    status = ErrorStatus(error.code(), error.details() or error.code().name)
    packed = next((value for key, value in error.trailing_metadata() if key == _DETAILS_KEY), None)
    if packed is not None:
        try:
            status = _read_details(status_pb2.Status.FromString(packed), status)
        except DecodeError:
            return PeerFailedError(f"{status.code.name}: {status.message} (the status details can't be decoded)")
    return error_of(status)
