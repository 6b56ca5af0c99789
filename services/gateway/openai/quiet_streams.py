"""Streams on which nothing comes for a while get a comment, so that neither client nor proxy takes them for dead.

A timer for each stream would have to be set anew for every token; one walk over all streams a second has not.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

QUIET_S = 15.0
_WALKS = 15
"""In the time after which a stream is quiet."""


class QuietStream(Protocol):
    """A stream that may be quiet."""

    def wake_if_quiet(self, now_s: float, quiet_s: float) -> None: ...


class QuietStreams:
    """The open streams. `run` must be running. At most `quiet_s` seconds pass without a word on any of them."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._streams: dict[int, QuietStream] = {}

    @contextmanager
    def watched(self, stream: QuietStream) -> Iterator[None]:
        """Watches a stream for the length of a block."""
        self._streams[id(stream)] = stream
        try:
            yield
        finally:
            del self._streams[id(stream)]

    async def run(self) -> None:
        """Walks for ever."""
        pause_s = self._quiet_s / _WALKS
        while True:
            await asyncio.sleep(pause_s)
            now_s = time.monotonic()
            for stream in tuple(self._streams.values()):
                stream.wake_if_quiet(now_s, self._quiet_s - pause_s)
