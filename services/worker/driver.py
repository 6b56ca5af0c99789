"""The worker's epochs: joins scheduler and KV manager, and hands their plans and commands to the ranks.

Theory of operation
-------------------
The event loop owns the streams. What the ranks do goes on elsewhere (one_rank.py, group/led_group.py); they are told
of plans and commands on arrival, and answer on the event loop.

An epoch begins with empty tables on every rank and a dial to both peers. The scheduler gives it its number, with which
the KV manager hears of it. To the ranks, who are ready before that, it has a number of the worker's own, which nobody
else hears of. It ends when either stream ends, when a peer breaks the protocol, or when a rank fails or is lost: then
the iterations under way are forgotten, and so is everything else, and the next epoch begins after a pause that grows
with every epoch that did not last. Only a peer that refuses this worker for good ends the worker; so does another
worker that has the group, if it still has it when the stream of a lost one would be gone.

A worker that is told to end says so to the scheduler, and works on until no job needs it or its time is over.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from services.domain.errors import (
    DuplicateRequestError,
    GroupTakenError,
    InvalidFieldError,
    PeerMismatchError,
)
from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import Plan, WorkerResult
from services.domain.protocol import Applied, Done, KvToWorker, PlansGivenBack, WorkerPools
from services.domain.worker_facts import KvWorkerFacts, WorkerDraining, WorkerFacts
from services.runtime.dialling import keep_dialling
from services.runtime.terms import NewestTerm
from services.runtime.tls.tls_files import Certificates
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

END_RESERVE_S, END_RESERVE_SHARE = 1.0, 0.1
"""Of the time that a worker is given to end, what the process itself takes: at most so many seconds, and this share."""

_FINAL = (PeerMismatchError, GroupTakenError, InvalidFieldError)
"""Answers of a peer after which dialling again can't help."""


@dataclass(frozen=True, slots=True)
class PeerAddresses:
    """Whom the worker dials, as HOST:PORT, and with which certificates."""

    scheduler: str
    kv_manager: str
    tls: Certificates | None = None


class WorkerEpoch:
    """One epoch of the worker: its outboxes, and how far joining has come. `number` is the ranks' own. Used on the
    event loop only.
    """

    def __init__(self, number: Epoch) -> None:
        self.number = number
        self.given = Epoch(0)
        """The number that the scheduler gave it."""
        self.results = ResultOutbox()
        self.acknowledgements = AcknowledgementOutbox()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.welcomed = asyncio.Event()
        """The scheduler has taken this worker."""
        self.over = asyncio.Event()
        """It has ended, or no job needs it any more."""

    def fail(self, error: Exception) -> None:
        """Ends the epoch."""
        if not self.broken.done():
            self.broken.set_exception(error)


class WorkerDriver:
    """One worker. `facts` lack the last epoch, the id of this life, and the pools that all ranks have. Another worker
    may have the group for `claim_limit_s` seconds before this one gives up.
    """

    def __init__(
        self,
        ranks: Ranks,
        facts: WorkerFacts,
        addresses: PeerAddresses,
        on_joined: Callable[[bool], None],
        claim_limit_s: float = 0.0,
        epoch_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ranks = ranks
        self._facts = replace(facts, worker_id=uuid.uuid4().hex)
        self._addresses = addresses
        self._terms = NewestTerm()
        self._on_joined = on_joined
        self._claim_limit_s = claim_limit_s
        self._epoch_clock = epoch_clock
        self._epoch: WorkerEpoch | None = None
        self._last_number = Epoch(0)
        self._last_given = Epoch(0)
        self._refused_since_s: float | None = None
        self._is_ending = False
        self.epochs_begun = 0
        """Epochs begun so far."""
        ranks.attach(self)

    async def run(self) -> None:
        """Works until cancelled. Raises PeerMismatchError, GroupTakenError or InvalidFieldError when a peer refuses
        this worker.
        """
        try:
            await keep_dialling(
                self._claim, "scheduler and KV manager", final=_FINAL, steady_s=STEADY_EPOCH_S, jitter=PAUSE_JITTER
            )
        finally:
            self._epoch = None
            await self._ranks.stop()

    async def drain(self, limit_s: float) -> None:
        """Says that this worker is about to end, and works on until no job needs it, so that the process ends within
        `limit_s` seconds. No further epoch begins.
        """
        self._is_ending = True
        epoch = self._epoch
        if epoch is None or not epoch.welcomed.is_set():
            return
        _log.info("about to end: the jobs here have %g s", limit_s)
        epoch.results.put(WorkerDraining(limit_s))
        with suppress(TimeoutError):
            await asyncio.wait_for(epoch.over.wait(), limit_s - min(END_RESERVE_S, END_RESERVE_SHARE * limit_s))

    # --- one epoch ---------------------------------------------------------------------------------------------------

    async def _claim(self, is_up: Callable[[], None]) -> None:
        """One epoch, until it ends: raises why. Raises GroupTakenError if another worker has had the group for too
        long.
        """
        if self._is_ending:
            await asyncio.Event().wait()
        try:
            await self._run_epoch(is_up)
        except DuplicateRequestError as error:
            now_s = time.monotonic()
            if self._refused_since_s is None:
                self._refused_since_s = now_s
            if now_s - self._refused_since_s >= self._claim_limit_s:
                raise GroupTakenError(str(error)) from None
            raise

    async def _run_epoch(self, is_up: Callable[[], None]) -> None:
        """One epoch, until it ends: raises why. All jobs here are forgotten with it."""
        is_up()
        self.epochs_begun += 1
        number = self._last_number = Epoch(max(self._epoch_clock(), self._last_number + 1))
        epoch = WorkerEpoch(number)
        try:
            await self._ranks.begin_epoch(number)
        except BaseException:
            self._ranks.end_epoch()
            raise
        self._epoch = epoch
        facts = replace(self._ranks.narrowed(self._facts), last_epoch=self._last_given)
        streams = (
            run_scheduler_stream(
                self._addresses.scheduler, facts, epoch.results, self, self._terms, self._addresses.tls
            ),
            self._join_kv_manager(epoch, facts),
        )
        try:
            await _first_error(streams, epoch.broken, self._ranks.end_epoch)
        finally:
            self._epoch = None
            epoch.over.set()
            self._on_joined(False)

    async def _join_kv_manager(self, epoch: WorkerEpoch, facts: WorkerFacts) -> None:
        # The scheduler decides whether a worker fits, and names the epoch.
        await epoch.welcomed.wait()
        await run_kv_manager_stream(
            self._addresses.kv_manager,
            kv_facts_of(facts, epoch.given),
            epoch.acknowledgements,
            lambda: self._kv_up(epoch),
            self._take_commands,
            self._addresses.tls,
        )

    def _kv_up(self, epoch: WorkerEpoch) -> None:
        _log.info("joined scheduler and KV manager as epoch %d", epoch.given)
        self._on_joined(True)

    # --- what the peers say ------------------------------------------------------------------------------------------

    def welcomed(self, epoch: Epoch) -> None:
        """The scheduler has taken this worker."""
        self._last_given, self._refused_since_s = epoch, None
        if self._epoch is not None:
            self._epoch.given = epoch
            self._epoch.welcomed.set()

    def take_plan(self, plan: Plan) -> None:
        """The scheduler sent a plan."""
        if self._epoch is not None:
            self._ranks.take_plan(replace(plan, epoch=self._epoch.number))

    def recall(self, first_plan_number: PlanNumber) -> None:
        """The scheduler would rather have other plans."""
        if self._epoch is not None:
            self._ranks.recall(first_plan_number)

    def released(self) -> None:
        """No job needs this worker, which is about to end."""
        if self._epoch is not None:
            self._epoch.over.set()

    def _take_commands(self, commands: Sequence[KvToWorker]) -> None:
        if self._epoch is not None:
            for command in commands:
                self._ranks.take_command(command)

    # --- what the ranks say ------------------------------------------------------------------------------------------

    def results_ready(self, results: Sequence[WorkerResult]) -> None:
        """Plans have been run."""
        for result in results:
            if self._epoch is not None and result.result.epoch == self._epoch.number:
                self._epoch.results.put(result)

    def gave_back(self, given_back: PlansGivenBack) -> None:
        """A recall is answered."""
        if self._epoch is not None and given_back.epoch == self._epoch.number:
            self._epoch.results.put(given_back)

    def answered(self, epoch: Epoch, answer: Applied | Done) -> None:
        """A command is in force, or its copies have ended."""
        if self._epoch is not None and epoch == self._epoch.number:
            self._epoch.acknowledgements.put(answer)

    def failed(self, epoch: Epoch, error: Exception) -> None:
        """The ranks can't go on in this epoch."""
        if self._epoch is not None and epoch == self._epoch.number:
            self._epoch.fail(error)


def kv_facts_of(facts: WorkerFacts, epoch: Epoch) -> KvWorkerFacts:
    """The same facts as the KV manager gets them."""
    pools = WorkerPools(epoch, facts.block_size, facts.device_blocks, facts.host_blocks)
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
