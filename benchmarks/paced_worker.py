"""A real worker before a device that is not there: `python -m benchmarks.paced_worker SECONDS FLAG...`.

It computes every token, and each iteration lasts SECONDS longer than the computing, as if a device read its weights
meanwhile. While it waits, its core is free for the workers beside it, so that several are faster than one on a machine
that has not as many cores.
"""

import sys

from benchmarks.pausing_engine import pause_iterations
from services.worker.__main__ import main as worker_main


def main(pause_s: str, *flags: str) -> int:
    """A worker's life; returns the exit status."""
    pause_iterations(lambda computed_s: float(pause_s))
    return worker_main(list(flags))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
