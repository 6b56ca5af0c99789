"""A real worker whose iterations take longer than it measured: `python -m tests.e2e.slow_worker FACTOR FLAG...`."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from services.domain.iteration import Plan, WorkerResult
from services.worker.__main__ import main as worker_main
from services.worker.one_rank import OneRank


class SlowEngine:
    """An engine that takes `factor` times as long for an iteration, and says so."""

    def __init__(self, engine: Any, factor: float) -> None:
        self._engine = engine
        self._factor = factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, plan: Plan) -> WorkerResult:
        began_s = time.monotonic()
        result: WorkerResult = self._engine.run(plan)
        time.sleep((self._factor - 1) * (time.monotonic() - began_s))
        duration_s = result.result.duration_s * self._factor
        return replace(result, result=replace(result.result, duration_s=duration_s))


def replace_engine(other: Callable[[Any], Any]) -> None:
    """Has the worker of this process use what `other` makes of its engine."""
    plain = OneRank.__init__

    def with_other_engine(self: OneRank, engine: Any, *others: Any) -> None:
        plain(self, other(engine), *others)

    OneRank.__init__ = with_other_engine  # type: ignore[method-assign, assignment]


def main(factor: str, *flags: str) -> int:
    replace_engine(lambda engine: SlowEngine(engine, float(factor)))
    return worker_main(list(flags))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
