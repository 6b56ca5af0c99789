"""The worker's epochs: joins scheduler and KV manager, hands plans to the stepping thread and commands to the engine.

Theory of operation
-------------------
The event loop owns the streams; a thread of its own, the stepping thread, runs the plans, and nothing else runs
there, so that no message is read or written between two iterations. Plans come to it through a queue, results go back
by `call_soon_threadsafe`. The KV manager's commands are applied on the event loop, on arrival, also while an
iteration runs.

An epoch begins with a number greater than all before it, empty tables, and a dial to both peers. It ends when
either stream ends, or when a peer breaks the protocol: then the iteration under way is finished and forgotten, and so
is everything else, and the next epoch begins after a pause that grows with every epoch that did not last. Only a peer
that refuses this worker for good ends the worker.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from services.domain.errors import (
    InvalidFieldError,
    PeerMismatchError,
    ProtocolError,
    SupersededError,
)
from services.domain.ids import Epoch
from services.domain.iteration import Plan, WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker, WorkerPools
from services.domain.worker_facts import KvWorkerFacts, WorkerFacts
from services.runtime.dialling import keep_dialling
from services.worker.worker_links import (
    AcknowledgementOutbox,
    ResultOutbox,
    run_kv_manager_stream,
    run_scheduler_stream,
)

_log = logging.getLogger(__name__)

MOST_WAITING_PLANS = 64
PAUSE_JITTER = 0.5
STEADY_EPOCH_S = 5.0
"""An epoch that lasted this long was a good one: the next pause is the shortest again."""

_FINAL = (PeerMismatchError, SupersededError, InvalidFieldError)
"""Answers of a peer after which dialling again can't help."""


class RunsPlans(Protocol):
    """What the driver needs of an engine."""

    def prepare_thread(self) -> None: ...
    def begin_epoch(self, epoch: Epoch, on_done: Callable[[Done], None]) -> None: ...
    def apply(self, command: KvToWorker) -> Applied: ...
    def run(self, plan: Plan) -> WorkerResult: ...
    def has_unfinished_jobs(self) -> bool: ...
    def add_plan_wait(self, seconds: float) -> None: ...
    def give_up(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """Whom the worker dials, as HOST:PORT."""

    scheduler: str
    kv_manager: str


class WorkerEpoch:
    """One epoch of the worker: its outboxes, and how far joining has come. Used on the event loop only."""

    def __init__(self, number: Epoch) -> None:
        self.number = number
        self.results = ResultOutbox()
        self.acknowledgements = AcknowledgementOutbox()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.welcomed = asyncio.Event()
        """The scheduler has taken this worker."""
        self.kv_up = False

    def fail(self, error: Exception) -> None:
        """Ends the epoch."""
        if not self.broken.done():
            self.broken.set_exception(error)


class Stepper:
    """Runs the plans of the current epoch in the order in which they came, on the thread that `post` runs things on."""

    def __init__(
        self,
        engine: RunsPlans,
        post: Callable[[Callable[[], None]], None],
        on_result: Callable[[WorkerResult], None],
        on_error: Callable[[Epoch, Exception], None],
    ) -> None:
        self._engine = engine
        self._on_result = on_result
        self._on_error = on_error
        self._plans: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
        self._epoch = Epoch(0)
        self._engine_in_use = threading.Lock()
        self._ended = threading.Event()
        post(self._run)

    def put(self, plan: Plan) -> None:
        """Raises ProtocolError when far more plans wait than a scheduler keeps in flight."""
        if self._plans.qsize() >= MOST_WAITING_PLANS:
            raise ProtocolError(f"{MOST_WAITING_PLANS} plans wait to be run")
        self._plans.put(plan)

    def begin_epoch(self, epoch: Epoch, on_done: Callable[[Done], None]) -> None:
        """Waits for the iteration under way and for the copies, then empties the engine. Plans of earlier
        epochs are dropped.
        """
        self._epoch = epoch
        with self._engine_in_use:
            self._engine.begin_epoch(epoch, on_done)

    def end_epoch(self) -> None:
        """No further plan of this epoch is begun."""
        self._epoch = Epoch(0)

    def stop(self) -> None:
        """Gives up the iteration under way, and returns when that has ended; no plan is run any more."""
        self.end_epoch()
        self._engine.give_up()
        self._plans.put(None)
        self._ended.wait()

    def _run(self) -> None:
        self._engine.prepare_thread()
        while (plan := self._next()) is not None:
            if plan.epoch != self._epoch:
                continue
            with self._engine_in_use:
                if plan.epoch != self._epoch:
                    continue
                try:
                    result = self._engine.run(plan)
                except Exception as error:  # passed to the epoch, which ends with it
                    self._on_error(plan.epoch, error)
                    continue
            self._on_result(result)
        self._ended.set()

    def _next(self) -> Plan | None:
        try:
            return self._plans.get_nowait()
        except queue.Empty:
            pass
        somebody_waits = self._engine.has_unfinished_jobs()
        started_s = time.perf_counter()
        plan = self._plans.get()
        if somebody_waits:
            self._engine.add_plan_wait(time.perf_counter() - started_s)
        return plan


class WorkerDriver:
    """One worker. `facts` hold everything but the epoch, which is different in each epoch; `post` gives the stepping
    thread its work.
    """

    def __init__(
        self,
        engine: RunsPlans,
        facts: WorkerFacts,
        addresses: PeerAddresses,
        post: Callable[[Callable[[], None]], None],
        on_joined: Callable[[bool], None],
        epoch_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._engine = engine
        self._facts = facts
        self._addresses = addresses
        self._on_joined = on_joined
        self._epoch_clock = epoch_clock
        self._loop = asyncio.get_running_loop()
        self._epoch: WorkerEpoch | None = None
        self._last_epoch = Epoch(0)
        self._stepper = Stepper(engine, post, self._result_ready, self._run_failed)
        self.epochs_begun = 0
        """Epochs begun so far."""

    async def run(self) -> None:
        """Works until cancelled. Raises PeerMismatchError, SupersededError or InvalidFieldError when a peer
        refuses this worker.
        """
        try:
            await keep_dialling(
                self._run_epoch, "scheduler and KV manager", final=_FINAL, steady_s=STEADY_EPOCH_S, jitter=PAUSE_JITTER
            )
        finally:
            self._epoch = None
            await asyncio.to_thread(self._stepper.stop)

    # --- one epoch ---------------------------------------------------------------------------------------------------

    async def _run_epoch(self, is_up: Callable[[], None]) -> None:
        """One epoch, until it ends: raises why. All jobs here are forgotten with it."""
        is_up()
        self.epochs_begun += 1
        number = self._last_epoch = Epoch(max(self._epoch_clock(), self._last_epoch + 1))
        epoch = WorkerEpoch(number)
        await asyncio.to_thread(self._stepper.begin_epoch, number, self._done_poster(epoch))
        self._epoch = epoch
        facts = replace(self._facts, epoch=number)
        streams = (
            run_scheduler_stream(
                self._addresses.scheduler,
                facts,
                epoch.results,
                lambda: self._up(epoch, scheduler=True),
                self._take_plan,
            ),
            self._join_kv_manager(epoch, kv_facts_of(facts)),
        )
        try:
            await _first_error(streams, epoch.broken, self._stepper.end_epoch)
        finally:
            self._epoch = None
            self._on_joined(False)

    async def _join_kv_manager(self, epoch: WorkerEpoch, facts: KvWorkerFacts) -> None:
        # The scheduler decides whether a worker fits. One that it refuses must not have taken the place of a good
        # one at the KV manager by then.
        await epoch.welcomed.wait()
        await run_kv_manager_stream(
            self._addresses.kv_manager,
            facts,
            epoch.acknowledgements,
            lambda: self._up(epoch, scheduler=False),
            self._take_commands,
        )

    def _up(self, epoch: WorkerEpoch, scheduler: bool) -> None:
        if scheduler:
            epoch.welcomed.set()
        else:
            epoch.kv_up = True
        if epoch.welcomed.is_set() and epoch.kv_up:
            _log.info("joined scheduler and KV manager as epoch %d", epoch.number)
            self._on_joined(True)

    def _take_plan(self, plan: Plan) -> None:
        self._stepper.put(plan)

    def _take_commands(self, commands: Sequence[KvToWorker]) -> None:
        if self._epoch is not None:
            for command in commands:
                self._epoch.acknowledgements.put(self._engine.apply(command))

    # --- from other threads ------------------------------------------------------------------------------------------

    def _done_poster(self, epoch: WorkerEpoch) -> Callable[[Done], None]:
        def post(done: Done) -> None:
            self._loop.call_soon_threadsafe(epoch.acknowledgements.put, done)

        return post

    def _result_ready(self, result: WorkerResult) -> None:
        self._loop.call_soon_threadsafe(self._send_result, result)

    def _send_result(self, result: WorkerResult) -> None:
        if self._epoch is not None and result.result.epoch == self._epoch.number:
            self._epoch.results.put(result)

    def _run_failed(self, epoch: Epoch, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._fail, epoch, error)

    def _fail(self, epoch: Epoch, error: Exception) -> None:
        if self._epoch is not None and epoch == self._epoch.number:
            self._epoch.fail(error)


def kv_facts_of(facts: WorkerFacts) -> KvWorkerFacts:
    """The same facts as the KV manager gets them."""
    pools = WorkerPools(facts.epoch, facts.block_size, facts.device_blocks, facts.host_blocks)
    return KvWorkerFacts(facts.group, pools, facts.block_bytes)


async def _first_error(
    streams: Sequence[Coroutine[Any, Any, None]], broken: "asyncio.Future[None]", on_end: Callable[[], None]
) -> None:
    """Runs the streams until one ends or the epoch is broken, ends the others, and raises why. `on_end` comes first."""
    tasks = [asyncio.ensure_future(stream) for stream in streams]
    try:
        done, _ = await asyncio.wait([*tasks, broken], return_when=asyncio.FIRST_COMPLETED)
    finally:
        on_end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    errors = [error for task in done if (error := task.exception()) is not None]
    assert errors, "a stream ends with an error"
    # A refusal weighs more than the loss of the other stream at the same moment.
    raise next((error for error in errors if isinstance(error, _FINAL)), errors[0])
