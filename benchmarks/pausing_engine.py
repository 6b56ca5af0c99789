"""A worker's engine whose iterations last longer than the computing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from services.domain.iteration import Plan, WorkerResult
from services.worker.one_rank import OneRank

Pause = Callable[[float], float]
"""Seconds to wait after an iteration, from those that it took to compute."""


class PausingEngine:
    """An engine that waits after each iteration, and says so."""

    def __init__(self, engine: Any, pause: Pause) -> None:
        self._engine = engine
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_first(self, plans: Sequence[Plan], next_plan: Callable[[], Plan | None]) -> list[WorkerResult]:
        """Run the first plan, alone: there is a pause after each. The next one is not asked for."""
        began_s = time.monotonic()
        result: WorkerResult = self._engine.run(plans[0])
        computed_s = time.monotonic()
        time.sleep(self._pause(computed_s - began_s))
        paused_s = time.monotonic() - computed_s
        return [replace(result, result=replace(result.result, duration_s=result.result.duration_s + paused_s))]


def pause_iterations(pause: Pause) -> None:
    """Has the worker of this process wait after each iteration."""
    plain = OneRank.__init__

    def with_pauses(self: OneRank, engine: Any, *others: Any) -> None:
        plain(self, PausingEngine(engine, pause), *others)

    OneRank.__init__ = with_pauses  # type: ignore[method-assign, assignment]
