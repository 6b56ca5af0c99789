"""A real worker whose iterations take longer than it measured: `python -m tests.e2e.slow_worker FACTOR FLAG...`."""

import sys

from benchmarks.pausing_engine import pause_iterations
from services.worker.__main__ import main as worker_main


def main(factor: str, *flags: str) -> int:
    pause_iterations(lambda computed_s: (float(factor) - 1) * computed_s)
    return worker_main(list(flags))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
