"""Refuses callers whose certificate has another name than the one that peers must have.

That a caller has a certificate of the right CA, TLS has seen to before its first message. This is for a CA that signs
more than the services of one server.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import grpc

from services.domain.errors import UnauthenticatedError
from services.runtime.guarded_handlers import guarded

_NAMES = "x509_subject_alternative_name"


class PeerNameInterceptor(grpc.aio.ServerInterceptor):
    """`name` must be among the names of a caller's certificate (its subject alternative names)."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        return None if handler is None else guarded(handler, self._check)

    def _check(self, context: Any) -> AbstractContextManager[None]:
        names = [bytes(name).decode("utf-8", "replace") for name in context.auth_context().get(_NAMES, ())]
        if self._name not in names:
            raise UnauthenticatedError(f"the caller's certificate must have the name {self._name}")
        return nullcontext()
