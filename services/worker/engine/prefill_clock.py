"""The clock of a prefill that may be cut: the time its compute takes, not the time its launch takes."""

import time
from collections.abc import Callable
from typing import Protocol


class Mark(Protocol):
    """A point in the device's queue of work."""

    def synchronize(self) -> None:
        """Returns once the device has reached it."""
        ...


class PrefillClock:
    """Called before each layer; False once `limit_s` seconds are over.

    On a device that computes beside the host, `mark` marks the end of all work launched so far. The seconds then begin
    when the device has done the work launched before, and each call waits until the device is within a layer of the
    host.
    """

    def __init__(self, limit_s: float, mark: Callable[[], Mark] | None) -> None:
        self._mark = mark
        self._before: Mark | None = None
        if mark is not None:
            mark().synchronize()
        self._until_s = time.perf_counter() + limit_s

    def __call__(self) -> bool:
        if self._mark is not None:
            before, self._before = self._before, self._mark()
            if before is not None:
                before.synchronize()
        return time.perf_counter() < self._until_s
