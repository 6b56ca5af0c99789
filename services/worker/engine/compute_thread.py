"""The one thread that computes: it loads the model, measures it, then runs plans.

It must be one thread. OpenMP keeps a team of threads for every thread that computes, and as soon as all teams
together have more threads than the machine has cores, it makes them wait as if the machine were overloaded, although
all teams but one are idle.

The system knows it, and the threads that it begins, by the name COMPUTE: `top -H` shows what the compute takes, and
what the rest of the process takes beside it.

Below `fastserve up` everything but this thread, and those that it begins, waits for its turn on a core
(services.runtime.core_turns).
"""

import asyncio
import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from services.runtime.core_turns import wake_at_once

ValueT = TypeVar("ValueT")

COMPUTE = "compute"
_PR_SET_NAME = 15


def _name_this_thread(name: str) -> None:
    """Names the calling thread for the system, which Python does not before 3.14; threads inherit it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


class ComputeThread:
    """Runs what it is given, in order. A daemon thread, so that a process can end while a model is loading."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=COMPUTE, daemon=True).start()

    def post(self, work: Callable[[], Any]) -> None:
        """Runs `work`, which must not raise, after everything posted before."""
        self._work.put(work)

    async def call(self, work: Callable[[], ValueT]) -> ValueT:
        """Runs `work`; returns its value or raises its error."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[ValueT] = loop.create_future()

        def finish(settle: Callable[[Any], None], value: Any) -> None:
            if not made.done():
                settle(value)

        def run() -> None:
            settle: Callable[[Any], None]
            value: Any
            try:
                settle, value = made.set_result, work()
            except Exception as error:  # raised again by the caller
                settle, value = made.set_exception, error
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, settle, value)

        self.post(run)
        return await made

    def _run(self) -> None:
        _name_this_thread(COMPUTE)
        wake_at_once()
        while True:
            self._work.get()()
