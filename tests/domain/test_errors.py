"""What every typed error can do, wherever it is raised."""

import inspect
import pickle

import pytest

from services.domain import errors
from services.domain.errors import (
    AdmissionFullError,
    ContextLengthError,
    FastServeError,
    InvalidFieldError,
    NotReadyError,
    PeerMismatchError,
    StreamLostError,
    UnreachableError,
)

OWN_CONSTRUCTOR = [
    InvalidFieldError("jobs", "at most 9"),
    ContextLengthError("prompt", "at most 9 tokens"),
    PeerMismatchError("block_size", "16 here"),
    AdmissionFullError("full", 2.5),
    NotReadyError("no worker", 2.5),
    UnreachableError("nobody answers", 2.5),
    StreamLostError("the worker ended", 2.5, "r-1", 7),
]
OTHERS = [
    kind("it failed")
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, FastServeError) and kind not in {type(error) for error in OWN_CONSTRUCTOR}
]


@pytest.mark.parametrize("error", [*OWN_CONSTRUCTOR, *OTHERS], ids=lambda error: type(error).__name__)
def test_an_error_reaches_another_process_as_it_is(error: FastServeError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert (str(there), vars(there)) == (str(error), vars(error))
