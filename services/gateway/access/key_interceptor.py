"""Asks the callers of a gateway's RPCs for an API key. What is not named here as open needs one, a new RPC too.

Open are health and reflection, which say nothing of requests and are asked by what has no key. OpenAiService and the
REST fronts' link decide call by call (services.gateway.openai.service, services.gateway.front_service): their refusals
carry OpenAI's names, and a link has calls of many keys.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import grpc

from services.gateway.access.key_ring import KeyRing, Metadata
from services.runtime.guarded_handlers import guarded

HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICES = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
FREE_METHODS = frozenset({"ListModels", "GetStatus", "WatchStatus", "ListOpenAiModels", "GetOpenAiModel"})
"""They generate nothing: they need a key, and do not count against its limits."""
OPEN_METHODS = frozenset({"GetOpenApi"})
"""They need no key."""

Entered = AbstractContextManager[object]


def entered(keys: KeyRing | None, method: str, metadata: Metadata) -> Entered:
    """What a call of the method (its name without that of the service) must enter, and leave at its end.

    Raises UnauthenticatedError; on entering, AdmissionFullError.
    """
    if keys is None or method in OPEN_METHODS:
        return nullcontext()
    if method in FREE_METHODS:
        keys.meter_of(metadata)
        return nullcontext()
    return keys.call(metadata)


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """`exempt` names services that are open, or decide for themselves."""

    def __init__(self, keys: KeyRing, exempt: tuple[str, ...]) -> None:
        self._keys = keys
        self._exempt = frozenset((HEALTH_SERVICE, *REFLECTION_SERVICES, *exempt))

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if handler is None or service in self._exempt:
            return handler
        metadata = tuple(handler_call_details.invocation_metadata or ())
        return guarded(handler, lambda _: entered(self._keys, method, metadata))
