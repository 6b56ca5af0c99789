"""One stream of a worker, as a server that does as the test says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from services.domain.errors import FastServeError

LIMIT_S = 60.0


class WorkerStream:
    """One stream of a worker: what it said first, what it said since, what to tell it."""

    def __init__(self, hello: Any) -> None:
        self.hello = hello
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def next(self) -> Any:
        async with asyncio.timeout(LIMIT_S):
            return await self.received.get()

    def send(self, message: Any) -> None:
        self.outgoing.put_nowait(message)

    def close(self, error: FastServeError | None = None) -> None:
        """Ends the stream, with OK or with the error's status."""
        self.outgoing.put_nowait(error)

    async def serve(self, requests: AsyncIterator[Any], first: Any | None) -> AsyncIterator[Any]:
        async def read() -> None:
            try:
                async for request in requests:
                    self.received.put_nowait(request)
            finally:
                self.ended.set()

        reader = asyncio.create_task(read())
        try:
            if first is not None:
                yield first
            while (message := await self.outgoing.get()) is not None:
                if isinstance(message, FastServeError):
                    raise message
                yield message
        finally:
            self.ended.set()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
