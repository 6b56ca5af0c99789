"""Typed errors survive the conversion to a status and back."""

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from services.domain.errors import (
    AdmissionFullError,
    DeadlineError,
    DuplicateRequestError,
    FastServeError,
    InvalidFieldError,
    ModelFolderError,
    NotReadyError,
    PeerFailedError,
    PeerMismatchError,
    ProtocolError,
    StreamLostError,
    SupersededError,
    UnauthenticatedError,
    UnknownModelError,
    UnreachableError,
)
from services.runtime.error_statuses import (
    MOST_MESSAGE_BYTES,
    ErrorStatus,
    code_of_number,
    error_of,
    from_grpc,
    number_of_code,
    status_of,
    to_grpc,
)

CROSSING = [
    (InvalidFieldError("sampling.top_p", "must be above 0, up to 1"), grpc.StatusCode.INVALID_ARGUMENT),
    (UnauthenticatedError("the API key is not valid"), grpc.StatusCode.UNAUTHENTICATED),
    (UnknownModelError("no model 'x' here"), grpc.StatusCode.NOT_FOUND),
    (DuplicateRequestError("request_id 'a' is known with another body"), grpc.StatusCode.ALREADY_EXISTS),
    (AdmissionFullError("20000 jobs are queued", 2.25), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotReadyError("no worker group is ready", 0.5), grpc.StatusCode.UNAVAILABLE),
    (StreamLostError("this gateway is shutting down", 0.5, "a/b; c", 17), grpc.StatusCode.UNAVAILABLE),
    (PeerMismatchError("model_fingerprint", "differs"), grpc.StatusCode.FAILED_PRECONDITION),
    (SupersededError("a newer worker took group 0"), grpc.StatusCode.ABORTED),
    (DeadlineError("the deadline passed"), grpc.StatusCode.DEADLINE_EXCEEDED),
]


def over_the_wire(status: ErrorStatus) -> grpc.aio.AioRpcError:
    told = to_grpc(status)
    metadata = grpc.aio.Metadata(*(told.trailing_metadata or ()))
    return grpc.aio.AioRpcError(told.code, grpc.aio.Metadata(), metadata, told.details)


@pytest.mark.parametrize(("error", "code"), CROSSING, ids=lambda value: type(value).__name__)
def test_an_error_comes_back_from_the_wire_as_it_was_raised(error: FastServeError, code: grpc.StatusCode) -> None:
    caught = over_the_wire(status_of(error))
    assert caught.code() is code
    back = from_grpc(caught)
    assert (type(back), str(back)) == (type(error), str(error))
    assert getattr(back, "field", None) == getattr(error, "field", None)
    assert getattr(back, "retry_after_s", None) == getattr(error, "retry_after_s", None)


def test_a_lost_stream_is_told_with_all_that_it_takes_to_resume_it() -> None:
    lost = StreamLostError("this gateway is shutting down", 0.5, "mine", 3).at(17)
    message = rpc_status.from_call(over_the_wire(status_of(lost)))  # type: ignore[arg-type]
    assert message is not None
    said = error_details_pb2.ErrorInfo()
    assert [detail.Unpack(said) for detail in message.details] == [False, True]
    assert (said.reason, said.domain) == ("STREAM_LOST", "fastserve")
    assert dict(said.metadata) == {"request_id": "mine", "resume_from_token": "17"}
    back = from_grpc(over_the_wire(status_of(lost)))
    assert isinstance(back, StreamLostError)
    assert (back.reason, back.request_id, back.resume_from_token) == (lost.reason, "mine", 17)


def test_an_invalid_field_is_told_as_a_bad_request_and_in_the_message() -> None:
    told = to_grpc(status_of(InvalidFieldError("sampling.n", "must be 1 to 16, is 99")))
    assert told.details == "sampling.n: must be 1 to 16, is 99"
    message = rpc_status.from_call(over_the_wire(status_of(InvalidFieldError("sampling.n", "must be 1 to 16, is 99"))))  # type: ignore[arg-type]
    assert message is not None
    bad = error_details_pb2.BadRequest()
    assert message.details[0].Unpack(bad)
    assert [(one.field, one.description) for one in bad.field_violations] == [("sampling.n", "must be 1 to 16, is 99")]


@pytest.mark.parametrize("error", [ModelFolderError("no folder"), ProtocolError("job a/0 was never sent")])
def test_an_error_that_is_no_clients_business_is_internal(error: FastServeError) -> None:
    back = from_grpc(over_the_wire(status_of(error)))
    assert isinstance(back, PeerFailedError)
    assert str(error) in str(back)


def test_a_peer_that_nobody_answers_for_is_unreachable_and_not_merely_not_ready() -> None:
    broken = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "failed to connect to all addresses"
    )
    assert isinstance(from_grpc(broken), UnreachableError)
    assert not isinstance(error_of(ErrorStatus(grpc.StatusCode.UNAVAILABLE, "wait", None, 1.0)), UnreachableError)


def test_details_that_are_none_do_not_hide_the_status() -> None:
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff\xff"))
    broken = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), metadata, "gone")
    assert "NOT_FOUND: gone" in str(from_grpc(broken))


def test_a_long_sentence_is_cut_so_that_it_fits_into_trailers() -> None:
    told = to_grpc(status_of(InvalidFieldError("sampling.stop", "é" * 100_000)))
    assert told.details is not None
    assert len(told.details.encode()) <= MOST_MESSAGE_BYTES + 100


def test_codes_and_their_numbers_belong_together() -> None:
    for code in grpc.StatusCode:
        assert code_of_number(number_of_code(code)) is code
    assert code_of_number(4711) is grpc.StatusCode.UNKNOWN
