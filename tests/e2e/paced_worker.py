"""A real worker, observed, whose iterations last as long as those of a large model, without the work: `python -m
tests.e2e.paced_worker SECONDS TRACE_FILE FLAG...`.
"""

import sys

from benchmarks.pausing_engine import pause_iterations
from tests.e2e.observed import main as observed_main


def main(least_s: str, trace_file: str, *flags: str) -> int:
    pause_iterations(lambda computed_s: max(0.0, float(least_s) - computed_s))
    return observed_main("worker", trace_file, *flags)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
