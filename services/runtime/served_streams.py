"""Shared by the servicers of bidirectional streams: the first message, and both directions until the stream ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from services.domain.errors import InvalidFieldError

MessageT = TypeVar("MessageT")

HELLO_LIMIT_S = 5.0


async def first_message(requests: AsyncIterator[MessageT]) -> MessageT:
    """The stream's first message, which identifies the peer. Raises InvalidFieldError if none arrives within
    HELLO_LIMIT_S.
    """
    try:
        async with asyncio.timeout(HELLO_LIMIT_S):
            return await anext(requests)
    except (StopAsyncIteration, TimeoutError):
        raise InvalidFieldError("hello", "must be the first message of the stream") from None


async def until_one_ends(reading: Awaitable[None], writing: Awaitable[None], closing: Awaitable[None]) -> None:
    """Wait until the peer ends its side or `closing` raises the reason to end the stream. This works even while writing
    is stuck because the peer does not read.

    The initial metadata must have been sent: else they go with the first message, and while that is stuck, gRPC refuses
    the status that ends the stream.
    """
    tasks = [asyncio.ensure_future(one) for one in (closing, reading, writing)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
