"""A service that is told to end before it serves ends at once, with exit status 0.

The kernel drops a SIGTERM sent to a container's first process that has no handler for it. So an image starts Python
with the signal blocked (docker/fastserve): what was sent meanwhile is delivered here, where a handler exists. Until a
service waits for its end (ServiceProcess.until_stopped) it has nothing to drain.
"""

import os
import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def end_on_stop_signals() -> None:
    """From now on, and for signals that were blocked so far: end at once. Call it on the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, _end)
    accept_stop_signals()


def accept_stop_signals() -> None:
    """For commands that are no services: unblock the signals, and leave what they do as it is."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
