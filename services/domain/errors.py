"""Typed errors. Each becomes one gRPC status by the table in services.runtime.error_statuses, which alone decides."""


class FastServeError(Exception):
    """Base of what the world can break. `str(error)` is one sentence for the person who can mend it."""


class InvalidFieldError(FastServeError):
    """A field of a request or of the settings is out of its limits (INVALID_ARGUMENT).

    `field` is its path, the message names the limit.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class UnknownModelError(FastServeError):
    """The request names a model that is not served here (NOT_FOUND)."""


class DuplicateRequestError(FastServeError):
    """The request id is known with another body (ALREADY_EXISTS)."""


class AdmissionFullError(FastServeError):
    """Too many jobs or tokens are queued (RESOURCE_EXHAUSTED). Try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReadyError(FastServeError):
    """No worker group is ready, or a peer can't be reached (UNAVAILABLE). Try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PeerMismatchError(FastServeError):
    """A peer that dials in does not fit (FAILED_PRECONDITION): another model, block size or context.

    `field` names what differs.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class SupersededError(FastServeError):
    """A newer stream or epoch of the same peer took over (ABORTED): do not dial again."""


class ModelFolderError(FastServeError):
    """A model folder is missing, truncated, or of a kind that is not supported."""


class ProtocolError(FastServeError):
    """A peer broke PROTOCOL: a bug on its side, told with the job's story. The stream is ended; INTERNAL."""


class DeadlineError(FastServeError):
    """The client's deadline passed before the end (DEADLINE_EXCEEDED)."""


class UnreachableError(NotReadyError):
    """Nobody answers at a peer's address, or the connection broke (UNAVAILABLE without a word from the peer itself)."""


class PeerFailedError(FastServeError):
    """A peer ended a call for a reason of its own, most likely a bug that its log tells of (INTERNAL)."""


class AddressInUseError(FastServeError):
    """The address to listen on is taken or can't be had. Ends a service at its start."""


class RecordingError(FastServeError):
    """A recording can't be read: it is none, damaged, or of another version."""
