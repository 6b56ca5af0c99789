"""Typed errors. Only the table in services.runtime.error_statuses determines which gRPC status each becomes."""

from typing import Any


class FastServeError(Exception):
    """Base of errors with a cause outside the code. `str(error)` is one sentence for the person who can fix it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, for another process: `Exception` would call the constructor with the message alone."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InvalidFieldError(FastServeError):
    """A field of a request or of the settings is invalid (INVALID_ARGUMENT).

    `field` is its path; the message names the limit.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ContextLengthError(InvalidFieldError):
    """A prompt, or prompt and output together, are longer than what the model or a job's KV may hold."""


class UnauthenticatedError(FastServeError):
    """The caller shows no valid API key, or its certificate has the wrong name (UNAUTHENTICATED)."""


class UnknownModelError(FastServeError):
    """The request names a model that is not served here (NOT_FOUND)."""


class DuplicateRequestError(FastServeError):
    """The request id is already in use with a different body (ALREADY_EXISTS)."""


class GroupTakenError(DuplicateRequestError):
    """Another worker has the group (ALREADY_EXISTS): the first goes on."""


class AdmissionFullError(FastServeError):
    """Too many jobs or tokens are queued (RESOURCE_EXHAUSTED). Retry after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReadyError(FastServeError):
    """No worker group is ready, or a peer can't be reached (UNAVAILABLE). Retry after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StreamLostError(NotReadyError):
    """A stream ends before its output does, and can be resumed elsewhere (UNAVAILABLE): by the same request with this
    `request_id` and `resume_from_token`. `reason` says why, without the way on.
    """

    def __init__(self, reason: str, retry_after_s: float, request_id: str, resume_from_token: int = 0) -> None:
        super().__init__(
            f"{reason}; to resume, repeat the request with request_id {request_id} and resume_from_token "
            f"{resume_from_token}",
            retry_after_s,
        )
        self.reason = reason
        self.request_id = request_id
        self.resume_from_token = resume_from_token

    def at(self, token_number: int) -> "StreamLostError":
        """The same for a stream whose next token has this number."""
        return StreamLostError(self.reason, self.retry_after_s, self.request_id, token_number)


class PeerMismatchError(FastServeError):
    """A peer that dialled in is incompatible (FAILED_PRECONDITION): its model, block size or context differs.

    `field` names what differs.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class SupersededError(FastServeError):
    """A newer instance of the same peer took over (ABORTED): do not redial."""


class ModelFolderError(FastServeError):
    """A model folder is missing, truncated, or in an unsupported format."""


class ProtocolError(FastServeError):
    """A peer broke PROTOCOL, which is a bug on its side. The message includes the job's history. Ends the stream with
    INTERNAL.
    """


class DeadlineError(FastServeError):
    """The client's deadline passed before the job ended (DEADLINE_EXCEEDED)."""


class UnreachableError(NotReadyError):
    """Nothing answers at a peer's address, or the connection broke (UNAVAILABLE from the transport, not the peer)."""


class PeerFailedError(FastServeError):
    """A peer ended a call with an unexpected status, most likely because of a bug; see the peer's log (INTERNAL)."""


class AddressInUseError(FastServeError):
    """The address to listen on is in use or not available. Ends a service at its start."""


class RecordingError(FastServeError):
    """A recording can't be read: it is damaged, from another version, or not a recording."""
