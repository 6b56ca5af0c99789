"""A worker of one rank: runs the plans on the stepping thread, and nothing else there, so that no message is read or
written between two iterations. The KV manager's commands are applied at once, also while an iteration runs.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import Plan, WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker, PlansGivenBack
from services.domain.worker_facts import WorkerFacts
from services.worker.held_results import HeldResults
from services.worker.ranks import HearsRanks

MOST_WAITING_PLANS = 64


class RunsPlans(Protocol):
    """What is needed of an engine. `run_first` may ask for the plan that will probably be run next."""

    def prepare_thread(self) -> None: ...
    def begin_epoch(self, epoch: Epoch, on_done: Callable[[Done], None]) -> None: ...
    def apply(self, command: KvToWorker) -> Applied: ...
    def prepare_guides(self, plan: Plan) -> None: ...
    def run_first(self, plans: Sequence[Plan], next_plan: Callable[[], Plan | None]) -> Sequence[WorkerResult]: ...
    def has_unfinished_jobs(self) -> bool: ...
    def add_plan_wait(self, seconds: float) -> None: ...
    def give_up(self) -> None: ...


class OneRank:
    """Runs the plans of the current epoch in the order in which they came, on the thread that `post` runs things on.

    Used on an event loop. A `Ranks` (ranks.py).
    """

    def __init__(self, engine: RunsPlans, post: Callable[[Callable[[], None]], None]) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._hears: HearsRanks | None = None
        self._plans: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
        self._at_hand: deque[Plan] = deque()
        self._begun = 0
        """So many of the plans at hand are being computed. With the plans at hand it is guarded by `_counts`."""
        self._counts = threading.Lock()
        self._epoch = Epoch(0)
        self._engine_in_use = threading.Lock()
        self._ended = threading.Event()
        self._results = HeldResults(self._say_results)
        post(self._run)

    def attach(self, hears: HearsRanks) -> None:
        self._hears = hears

    def narrowed(self, facts: WorkerFacts) -> WorkerFacts:
        return facts

    def take_plan(self, plan: Plan) -> None:
        """Raises ProtocolError when far more plans wait than a scheduler keeps in flight."""
        if self._plans.qsize() + len(self._at_hand) >= MOST_WAITING_PLANS:
            raise ProtocolError(f"{MOST_WAITING_PLANS} plans wait to be run")
        self._engine.prepare_guides(plan)
        self._plans.put(plan)

    def recall(self, first_plan_number: PlanNumber) -> None:
        given_back: list[PlanNumber] = []
        with self._counts:
            while len(self._at_hand) > self._begun and self._at_hand[-1].plan_number >= first_plan_number:
                given_back.append(self._at_hand.pop().plan_number)
            # What the stepping thread has not seen and is to stay goes back to where that may wait for it.
            unseen: list[Plan | None] = []
            with contextlib.suppress(queue.Empty):
                while True:
                    unseen.append(self._plans.get_nowait())
            for plan in unseen:
                if plan is None or plan.plan_number < first_plan_number:
                    self._plans.put(plan)
                else:
                    given_back.append(plan.plan_number)
        if self._hears is not None:
            self._hears.gave_back(PlansGivenBack(self._epoch, min(given_back, default=None)))

    def take_command(self, command: KvToWorker) -> None:
        """Raises ProtocolError for a command that can't be right."""
        applied = self._engine.apply(command)
        if self._hears is not None:
            self._hears.answered(self._epoch, applied)

    async def begin_epoch(self, epoch: Epoch) -> None:
        """Waits for the iteration under way and for the copies, then empties the engine. Plans of earlier epochs are
        dropped.
        """

        def begin() -> None:
            self._epoch = epoch
            with self._engine_in_use:
                self._engine.begin_epoch(epoch, lambda done: self._post(lambda hears: hears.answered(epoch, done)))

        await asyncio.to_thread(begin)

    def end_epoch(self) -> None:
        """No further plan of this epoch is begun."""
        self._epoch = Epoch(0)

    async def stop(self) -> None:
        """Gives up the iteration under way, and returns when that has ended; no plan is run any more."""
        self.end_epoch()
        self._engine.give_up()
        self._plans.put(None)
        await asyncio.to_thread(self._ended.wait)

    def _post(self, what: Callable[[HearsRanks], None]) -> None:
        """Says something on the event loop, from another thread."""
        if self._hears is not None:
            self._loop.call_soon_threadsafe(what, self._hears)

    # --- the stepping thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._engine.prepare_thread()
        while (plan := self._next()) is not None:
            self._run_plan(plan)
        self._ended.set()

    def _run_plan(self, plan: Plan) -> None:
        if plan.epoch != self._epoch:
            return
        with self._engine_in_use:
            if plan.epoch != self._epoch:
                return
            self._results.begin(plan)
            with self._counts:
                self._begun = self._results.room(len(self._at_hand))
                behind = list(islice(self._at_hand, self._begun))
            try:
                results = self._engine.run_first([plan, *behind], self._first_at_hand)
            except Exception as error:  # passed to the epoch, which ends with it
                failure = error
                self._results.drop()
                self._post(lambda hears: hears.failed(plan.epoch, failure))
                return
        with self._counts:
            self._begun = 0
            ran = [plan, *(self._at_hand.popleft() for _ in results[1:])]
            self._look()
            at_hand = len(self._at_hand)
        self._results.add(ran, results, at_hand)

    def _first_at_hand(self) -> Plan | None:
        with self._counts:
            self._look()
            return self._at_hand[0] if self._at_hand else None

    def _say_results(self, results: Sequence[WorkerResult]) -> None:
        self._post(lambda hears: hears.results_ready(results))

    def _next(self) -> Plan | None:
        with self._counts:
            self._look()
            if self._at_hand:
                return self._at_hand.popleft()
        somebody_waits = self._engine.has_unfinished_jobs()
        started_s = time.perf_counter()
        plan = self._plans.get()
        if somebody_waits:
            self._engine.add_plan_wait(time.perf_counter() - started_s)
        return plan

    def _look(self) -> None:
        """Takes what has come to hand."""
        with contextlib.suppress(queue.Empty):
            while len(self._at_hand) < MOST_WAITING_PLANS:
                plan = self._plans.get_nowait()
                if plan is None:  # for `_next` to find
                    return self._plans.put(None)
                self._at_hand.append(plan)
