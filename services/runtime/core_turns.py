"""Whose turn it is on a core, where services and compute share them.

Linux lets a thread that wakes take the core from one that has had more than its share, which here is always one that
computes. Compute goes on in phases of some microseconds, all of its threads together, so it loses more than the core's
time. A thread of class SCHED_BATCH takes a free core when it wakes, or waits until a turn of about three milliseconds
is over. A message that is late by so much delays nothing under load, because plans are made ahead.

Threads and processes inherit the class from the thread that begins them. No privilege is needed.
"""

import os
import sys
from contextlib import suppress


def wake_patiently() -> None:
    """From now on this thread takes no core from another when it wakes, nor do those that it begins."""
    if sys.platform == "linux":
        _change_class(os.SCHED_OTHER, os.SCHED_BATCH)


def wake_at_once() -> None:
    """Undoes what this thread has inherited from one that wakes patiently."""
    if sys.platform == "linux":
        _change_class(os.SCHED_BATCH, os.SCHED_OTHER)


def _change_class(before: int, after: int) -> None:
    """Of this thread. Another class than `before` was somebody's choice, and stays. So does this one where a sandbox
    forbids the change: everything works without it, only slower.
    """
    with suppress(OSError):
        if os.sched_getscheduler(0) == before:
            os.sched_setscheduler(0, after, os.sched_param(0))
