"""The worker's epochs: joins scheduler and KV manager, and hands their plans and commands to the ranks.

Theory of operation
-------------------
The event loop owns the streams. What the ranks do goes on elsewhere (one_rank.py, group/led_group.py); they are told
of plans and commands on arrival, and answer on the event loop.

An epoch begins with a number greater than all before it, empty tables on every rank, and a dial to both peers. It ends
when either stream ends, when a peer breaks the protocol, or when a rank fails or is lost: then the iterations under way
are forgotten, and so is everything else, and the next epoch begins after a pause that grows with every epoch that did
not last. Only a peer that refuses this worker for good ends the worker.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.domain.errors import (
    InvalidFieldError,
    PeerMismatchError,
    SupersededError,
)
from services.domain.ids import Epoch
from services.domain.iteration import WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker, WorkerPools
from services.domain.worker_facts import KvWorkerFacts, WorkerFacts
from services.runtime.dialling import keep_dialling
from services.runtime.terms import NewestTerm
from services.worker.ranks import Ranks
from services.worker.worker_links import (
    AcknowledgementOutbox,
    ResultOutbox,
    run_kv_manager_stream,
    run_scheduler_stream,
)

_log = logging.getLogger(__name__)

PAUSE_JITTER = 0.5
STEADY_EPOCH_S = 5.0
"""An epoch that lasted this long was a good one: the next pause is the shortest again."""

_FINAL = (PeerMismatchError, SupersededError, InvalidFieldError)
"""Answers of a peer after which dialling again can't help."""


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


class WorkerDriver:
    """One worker. `facts` hold everything but the epoch, which is different in each epoch, and the pools that all ranks
    have.
    """

    def __init__(
        self,
        ranks: Ranks,
        facts: WorkerFacts,
        addresses: PeerAddresses,
        on_joined: Callable[[bool], None],
        epoch_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ranks = ranks
        self._facts = facts
        self._addresses = addresses
        self._terms = NewestTerm()
        self._on_joined = on_joined
        self._epoch_clock = epoch_clock
        self._epoch: WorkerEpoch | None = None
        self._last_epoch = Epoch(0)
        self.epochs_begun = 0
        """Epochs begun so far."""
        ranks.attach(self)

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
            await self._ranks.stop()

    # --- one epoch ---------------------------------------------------------------------------------------------------

    async def _run_epoch(self, is_up: Callable[[], None]) -> None:
        """One epoch, until it ends: raises why. All jobs here are forgotten with it."""
        is_up()
        self.epochs_begun += 1
        number = self._last_epoch = Epoch(max(self._epoch_clock(), self._last_epoch + 1))
        epoch = WorkerEpoch(number)
        try:
            await self._ranks.begin_epoch(number)
        except BaseException:
            self._ranks.end_epoch()
            raise
        self._epoch = epoch
        facts = replace(self._ranks.narrowed(self._facts), epoch=number)
        streams = (
            run_scheduler_stream(
                self._addresses.scheduler,
                facts,
                epoch.results,
                lambda: self._up(epoch, scheduler=True),
                self._ranks.take_plan,
                self._terms,
            ),
            self._join_kv_manager(epoch, kv_facts_of(facts)),
        )
        try:
            await _first_error(streams, epoch.broken, self._ranks.end_epoch)
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

    def _take_commands(self, commands: Sequence[KvToWorker]) -> None:
        if self._epoch is not None:
            for command in commands:
                self._ranks.take_command(command)

    # --- what the ranks say ------------------------------------------------------------------------------------------

    def result_ready(self, result: WorkerResult) -> None:
        """A plan has been run."""
        if self._epoch is not None and result.result.epoch == self._epoch.number:
            self._epoch.results.put(result)

    def answered(self, epoch: Epoch, answer: Applied | Done) -> None:
        """A command is in force, or its copies have ended."""
        if self._epoch is not None and epoch == self._epoch.number:
            self._epoch.acknowledgements.put(answer)

    def failed(self, epoch: Epoch, error: Exception) -> None:
        """The ranks can't go on in this epoch."""
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
