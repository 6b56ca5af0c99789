"""What the details of a gRPC status say."""

from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2


def details(error: grpc.aio.AioRpcError) -> list[Any]:
    """The google.rpc details of a status: BadRequest and RetryInfo."""
    packed = next(value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin")
    found: list[Any] = []
    for detail in status_pb2.Status.FromString(packed).details:
        for kind in (error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            message = kind()
            if detail.Unpack(message):
                found.append(message)
    return found


def violated_field(error: grpc.aio.AioRpcError) -> str:
    """The field named by an INVALID_ARGUMENT."""
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    (bad,) = details(error)
    field: str = bad.field_violations[0].field
    return field


def retry_after_s(error: grpc.aio.AioRpcError) -> float:
    """How long a refusal asks the client to wait."""
    (retry,) = details(error)
    return float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
