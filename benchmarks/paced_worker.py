"""A real worker before a device that is not there: `python -m benchmarks.paced_worker SECONDS FLAG...`.

It computes every token, and each iteration lasts SECONDS longer than the computing, as if a device read its weights
meanwhile. While it waits, its core is free for the workers beside it, so that several are faster than one on a machine
that has not as many cores.
"""

import sys
import time
from dataclasses import replace
from typing import Any

from services.domain.iteration import Plan, WorkerResult
from services.worker.__main__ import main as worker_main
from services.worker.one_rank import OneRank


class PacedEngine:
    """An engine that waits `pause_s` seconds in every iteration, and says so."""

    def __init__(self, engine: Any, pause_s: float) -> None:
        self._engine = engine
        self._pause_s = pause_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, plan: Plan) -> WorkerResult:
        """Run the plan."""
        result: WorkerResult = self._engine.run(plan)
        computed_s = time.monotonic()
        time.sleep(self._pause_s)
        paused_s = time.monotonic() - computed_s
        return replace(result, result=replace(result.result, duration_s=result.result.duration_s + paused_s))


def main(pause_s: str, *flags: str) -> int:
    """A worker's life; returns the exit status."""
    plain = OneRank.__init__

    def paced(self: OneRank, engine: Any, *others: Any) -> None:
        plain(self, PacedEngine(engine, float(pause_s)), *others)

    OneRank.__init__ = paced  # type: ignore[method-assign, assignment]
    return worker_main(list(flags))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
