"""The /metrics endpoint of a service: its own registry with metrics of the process, and a small HTTP server."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

from services.domain.errors import AddressInUseError, FastServeError
from services.runtime.settings import bare_host, join_address

SCRAPE_LIMIT_S = 1.0

AnswerT = TypeVar("AnswerT")


def new_registry() -> CollectorRegistry:
    """A registry with memory, CPU time, open files and garbage collections of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def asking_loop(question: Callable[[], Awaitable[AnswerT] | AnswerT]) -> Callable[[], AnswerT | None]:
    """For collectors, which run on the metrics server's thread: returns a function that asks the current event loop. It
    returns None if the loop has ended or does not answer within SCRAPE_LIMIT_S, or if the question raises a
    FastServeError.
    """
    loop = asyncio.get_running_loop()

    async def asked() -> AnswerT:
        answer = question()
        return await answer if isinstance(answer, Awaitable) else answer

    def ask() -> AnswerT | None:
        if not loop.is_running():
            return None
        future = asyncio.run_coroutine_threadsafe(asked(), loop)
        try:
            return future.result(SCRAPE_LIMIT_S)
        except (FastServeError, FutureTimeoutError):
            future.cancel()
            return None

    return ask


class MetricsServer:
    """Serves `GET /metrics` from a daemon thread, which calls the registry's collectors once per scrape."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        """Starts listening at once; port 0 picks a free port. Raises AddressInUseError."""
        try:
            self._server, self._thread = start_http_server(port, bare_host(host), registry)
        except OSError as error:
            reason = error.strerror or error
            raise AddressInUseError(f"can't serve metrics on {join_address(host, port)}: {reason}") from None
        self.port: int = self._server.server_port
        self.address = join_address(host, self.port)

    def stop(self) -> None:
        """Closes the port and ends the thread."""
        # The thread looks every half second whether it is to end, and whenever its socket has something to say. One
        # that takes no more connections has; where a listening socket can't be told so, it is the half second.
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5.0)
