"""The one way a forward pass ends early, and what ends it."""

import ctypes
import time


class PrefillCut(Exception):  # noqa: N818 (a requested outcome, not an error)
    """`keep_going` returned False between two layers: the pass is abandoned.

    KV of its rows may be written in part; nothing before them is touched.
    """


class StepLimit:
    """A `keep_going` that compiled code can read by itself: the switch by which passes are given up, and a time after
    which one is.
    """

    def __init__(self, switch: "ctypes.c_int32", limit_s: float | None = None) -> None:
        self._switch = switch
        self.deadline_ns = 0 if limit_s is None else time.monotonic_ns() + int(limit_s * 1e9)

    @property
    def address(self) -> int:
        """Where the switch is: an int32 that is not 0 once passes are given up."""
        return ctypes.addressof(self._switch)

    def __call__(self) -> bool:
        return not self._switch.value and (not self.deadline_ns or time.monotonic_ns() < self.deadline_ns)
