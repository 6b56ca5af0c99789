"""A real worker, observed, whose iterations last as long as those of a large model, without the work: `python -m
tests.e2e.paced_worker SECONDS TRACE_FILE FLAG...`.
"""

import sys
import threading
import time
from dataclasses import replace
from typing import Any

from services.domain.iteration import Plan, WorkerResult
from tests.e2e.observed import main as observed_main
from tests.e2e.slow_worker import replace_engine


class PacedEngine:
    """An engine whose iterations take so many seconds at least, and which says so."""

    def __init__(self, engine: Any, least_s: float) -> None:
        self._engine = engine
        self._least_s = least_s
        self._pause = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, plan: Plan) -> WorkerResult:
        began_s = time.monotonic()
        result: WorkerResult = self._engine.run(plan)
        self._pause.wait(max(0.0, began_s + self._least_s - time.monotonic()))
        duration_s = max(self._least_s, result.result.duration_s)
        return replace(result, result=replace(result.result, duration_s=duration_s))


def main(least_s: str, trace_file: str, *flags: str) -> int:
    replace_engine(lambda engine: PacedEngine(engine, float(least_s)))
    return observed_main("worker", trace_file, *flags)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
