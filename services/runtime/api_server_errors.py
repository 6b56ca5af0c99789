"""What can go wrong between a service and Kubernetes' API server, known without the package that talks to it."""

from services.domain.errors import FastServeError


class ApiServerError(FastServeError):
    """The API server can't be reached or refuses; the message says what to change."""


class WriteConflictError(FastServeError):
    """Another wrote the object since it was read: read it again."""
