"""Waiting until a condition holds that nobody tells, with a limit."""

import asyncio
import threading
import time
from collections.abc import Callable

LIMIT_S = 60.0
"""Of a wait for something that a peer on loopback does at once."""

START_LIMIT_S = 90.0
"""Of a wait for services that start, with torch if they need it."""


def wait_until(condition: Callable[[], object], what: str, limit_s: float = START_LIMIT_S) -> None:
    """Polls until `condition` holds; fails the test, naming `what`, after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what}: not within {limit_s} s")
        pause.wait(0.01)


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """The same on an event loop; TimeoutError after `limit_s`."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.005)
