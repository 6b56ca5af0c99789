"""Waiting until a condition holds that nobody tells, with a limit."""

import asyncio
import threading
import time
from collections.abc import Callable

LIMIT_S = 60.0
"""Of a wait for something that a peer on loopback does at once."""

START_LIMIT_S = 90.0
"""Of a wait for services that start, with torch if they need it."""


SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.2
PAUSE_OF_WAITED = 0.05
"""A condition that asks a server takes its time, and the machine's from the services that start meanwhile."""


def wait_until(condition: Callable[[], object], what: str, limit_s: float = START_LIMIT_S) -> None:
    """Polls until `condition` holds, seldom when it takes long; fails the test, naming `what`, after `limit_s`."""
    began_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        waited_s = time.monotonic() - began_s
        if waited_s > limit_s:
            raise AssertionError(f"{what}: not within {limit_s} s")
        pause.wait(min(max(PAUSE_OF_WAITED * waited_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """The same on an event loop; TimeoutError after `limit_s`."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.005)
