"""For interceptors that decide whether a call may begin, and want to know when it ended."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any

Guard = Callable[[Any], AbstractContextManager[object]]
"""From a call's context: what is entered before the call's handler begins, and left at its end. It, or entering it, may
raise a typed error, which refuses the call.
"""

_KINDS = ("unary_unary", "stream_unary", "unary_stream", "stream_stream")


def guarded(handler: Any, guard: Guard) -> Any:
    """The same handler, for calls that pass the guard."""
    changes = {kind: _guarded(behavior, guard) for kind in _KINDS if (behavior := getattr(handler, kind)) is not None}
    return handler._replace(**changes)


def _guarded(behavior: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(behavior):

        async def stream(request_or_iterator: Any, context: Any) -> AsyncIterator[Any]:
            with guard(context):
                async with aclosing(behavior(request_or_iterator, context)) as responses:
                    async for response in responses:
                        yield response

        return stream

    async def call(request_or_iterator: Any, context: Any) -> Any:
        with guard(context):
            return await behavior(request_or_iterator, context)

    return call
