"""The ranks of a group, as their leader has them: its own one in this process, the others connected. A `Ranks`
(worker/ranks.py): the driver's side of the leader's machine.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from services.domain.errors import ProtocolError, UnreachableError
from services.domain.ids import Epoch, PlanNumber
from services.domain.iteration import Plan
from services.domain.protocol import KvToWorker
from services.domain.worker_facts import WorkerFacts
from services.worker.group.leader_machine import (
    Acknowledge,
    CommandTaken,
    EndEpoch,
    EpochOver,
    EpochWanted,
    Event,
    GiveBack,
    Hello,
    LeaderMachine,
    PlansRecalled,
    PlanTaken,
    RankJoined,
    RankLost,
    RankSaid,
    Report,
    Tell,
)
from services.worker.group.messages import Begin, FromRank, RankFacts
from services.worker.group.rank_server import RankServer
from services.worker.group.rank_worker import RankWorker
from services.worker.ranks import HearsRanks

_log = logging.getLogger(__name__)

WAITING_LOG_S = 10.0
SAME_ON_ALL = (
    *("tp", "pp", "model_fingerprint", "first_layers"),
    *("dtype", "kernels", "weights", "block_size", "max_model_len"),
)
"""Fields of a rank's facts."""

NewRankWorker = Callable[[Callable[[FromRank], None], Callable[[Exception], None]], RankWorker]
"""Makes the leader's own rank, given how it says something and what gets its fatal error."""


class LedGroup:
    """A group of several ranks. `own` are the facts of the leader's rank, `store_port` is where the ranks meet, and
    `wait_limit_s` bounds the wait for another rank within an iteration.
    """

    def __init__(
        self,
        own: RankFacts,
        wait_limit_s: float,
        store_port: int,
        server: RankServer,
        new_worker: NewRankWorker,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._own = own
        self._wait_limit_s = wait_limit_s
        self._store_port = store_port
        self._loop = asyncio.get_running_loop()
        self._machine = LeaderMachine(own.pp, own.tp)
        self._facts = {own.rank: own}
        self._hears: HearsRanks | None = None
        self._formed: asyncio.Future[None] | None = None
        self._epoch = Epoch(0)
        self._clock = clock
        self._lacking_since_s: float | None = None
        """Since when the first stage has had nothing to compute for want of a plan."""
        self._server = server
        self._worker = new_worker(self._own_rank_says, self._own_rank_broke)
        self._take(RankJoined(own.rank))
        server.attach(self)

    # --- a Ranks -----------------------------------------------------------------------------------------------------

    def attach(self, hears: HearsRanks) -> None:
        self._hears = hears

    def narrowed(self, facts: WorkerFacts) -> WorkerFacts:
        """A block takes up one block on every rank, so the smallest pools count."""
        ranks = self._facts.values()
        return replace(
            facts,
            device_blocks=min(rank.device_blocks for rank in ranks),
            host_blocks=min(rank.host_blocks for rank in ranks),
            block_bytes=sum(rank.block_bytes for rank in ranks),
            stage_count=self._own.pp,
            rank_count=self._own.pp * self._own.tp,
        )

    async def begin_epoch(self, epoch: Epoch) -> None:
        await self._form(epoch, measures=False)

    async def measure(self, epoch: Epoch) -> None:
        """An epoch in which the ranks measure the model. Raises like begin_epoch."""
        try:
            await self._form(epoch, measures=True)
        finally:
            self.end_epoch()

    def take_plan(self, plan: Plan) -> None:
        self._take(PlanTaken(plan))

    def recall(self, first_plan_number: PlanNumber) -> None:
        self._take(PlansRecalled(first_plan_number))

    def take_command(self, command: KvToWorker) -> None:
        self._take(CommandTaken(command))

    def end_epoch(self) -> None:
        self._take(EpochOver())

    async def stop(self) -> None:
        self.end_epoch()
        await self._server.stop()
        await asyncio.to_thread(self._worker.stop)

    # --- epochs ------------------------------------------------------------------------------------------------------

    async def _form(self, epoch: Epoch, *, measures: bool) -> None:
        self._epoch = epoch
        self._formed = formed = self._loop.create_future()
        self._take(EpochWanted(Begin(epoch, self._store_port, self._wait_limit_s, measures)))
        waiting = self._loop.create_task(self._log_missing())
        try:
            await formed
        finally:
            waiting.cancel()
            self._formed = None

    async def _log_missing(self) -> None:
        while True:
            if missing := self._machine.missing_ranks:
                _log.info("waiting for rank %s", ", ".join(map(str, missing)))
            await asyncio.sleep(WAITING_LOG_S)

    def _fail(self, epoch: Epoch, error: Exception) -> None:
        if epoch != self._epoch:
            return
        if self._formed is not None:
            if not self._formed.done():
                self._formed.set_exception(error)
        elif self._hears is not None:
            self._hears.failed(epoch, error)

    # --- the ranks ---------------------------------------------------------------------------------------------------

    def check(self, facts: RankFacts) -> None:
        """Raises PeerMismatchError for a rank that does not fit."""
        facts.check_joins(self._own)

    def lost(self, rank: int, reason: str) -> None:
        """A rank's connection ended."""
        self._take(RankLost(rank, reason))

    def said(self, rank: int, message: FromRank) -> None:
        """A rank said something."""
        self._take(RankSaid(rank, message))

    def joined(self, facts: RankFacts) -> None:
        """A rank that fits is connected."""
        _log.info("rank %d has joined", facts.rank)
        self._facts[facts.rank] = facts
        self._take(RankJoined(facts.rank))

    def _own_rank_says(self, message: FromRank) -> None:
        self._loop.call_soon_threadsafe(self._take, RankSaid(self._own.rank, message))

    def _own_rank_broke(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(lambda: self._fail(self._epoch, error))

    # --- the machine -------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        try:
            actions = self._machine.handle(event)
            self._count_plan_wait()
            for action in actions:
                match action:
                    case Tell(rank, message) if rank == self._own.rank:
                        self._worker.hear(message)
                    case Tell(rank, message):
                        self._server.tell(rank, message)
                    case Acknowledge(answer):
                        if self._hears is not None:
                            self._hears.answered(self._epoch, answer)
                    case Report(result):
                        if self._hears is not None:
                            self._hears.results_ready((result,))
                    case GiveBack(given_back):
                        if self._hears is not None:
                            self._hears.gave_back(given_back)
                    case Hello():
                        if self._formed is not None and not self._formed.done():
                            self._formed.set_result(None)
                    case EndEpoch(epoch, reason):
                        self._fail(epoch, UnreachableError(reason))
        except ProtocolError as error:
            self._fail(self._epoch, error)

    def _count_plan_wait(self) -> None:
        """Counted before the step that ends the wait begins, so that its result has it."""
        lacks_plan = self._machine.lacks_plan
        if lacks_plan and self._lacking_since_s is None:
            self._lacking_since_s = self._clock()
        elif not lacks_plan and self._lacking_since_s is not None:
            self._worker.add_plan_wait(self._clock() - self._lacking_since_s)
            self._lacking_since_s = None
