"""The leader's own rank, and its way to a group that can serve: load, let the others connect, measure through all."""

import asyncio
import logging
import time
from collections.abc import Callable

from services.domain.errors import UnreachableError
from services.domain.ids import Epoch
from services.domain.worker_facts import WorkerFacts
from services.runtime.backoff import Backoff
from services.runtime.settings import split_address
from services.worker.build import guides_of, load_rank_of, stages_of
from services.worker.engine.engine import Engine
from services.worker.group.led_group import LedGroup
from services.worker.group.meeting import (
    GroupStore,
    Meeting,
    rank_facts,
    rank_identity,
    stay_on_loopback,
    write_leader,
)
from services.worker.group.placement import RankPlacement
from services.worker.group.rank_server import RankServer
from services.worker.group.rank_worker import RankWorker
from services.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)


class LeadRank:
    """Made on the thread that computes, which may measure what layers cost."""

    def __init__(self, settings: WorkerSettings, placement: RankPlacement) -> None:
        self._settings = settings
        self._placement = placement
        self._address = placement.leader or f"{split_address(placement.store or '').host}:0"
        host = split_address(self._address).host
        stay_on_loopback(host)
        self._host = host
        self._store = GroupStore(host)
        folder = settings.profile_folder
        self._first_layers = stages_of(settings, settings.layout, placement.local_rank, folder)

    async def listen(self) -> RankServer:
        """Lets the other ranks ask for their layers. Raises AddressInUseError."""
        own = rank_identity(self._placement.rank, self._settings)
        server = RankServer(own, self._first_layers, self._settings.group_timeout)
        address = await server.start(self._address)
        _log.info(
            "the leader of %s listens on %s; stages begin at %s", self._settings.layout, address, self._first_layers
        )
        if self._placement.store is not None:
            await asyncio.to_thread(write_leader, self._placement.store, address)
        return server

    def load(self) -> Engine:
        """Loads the leader's share, on the thread that computes. Raises like `load_rank_of`."""
        rank, settings = self._placement.rank, self._settings
        self._loaded = load_rank_of(settings, rank, self._placement.local_rank, self._first_layers)
        guides = guides_of(settings.model) if rank.samples else None
        self.engine = Engine(self._loaded.model, self._loaded.pools, rank=rank, guides=guides)
        self._meeting = Meeting(
            rank, self._loaded, self.engine, lambda: self._host, settings.profile_folder, self._store
        )
        return self.engine

    def gather(self, server: RankServer, post: Callable[[Callable[[], None]], None]) -> LedGroup:
        """The group, which the other ranks may join from now on. `post` runs what it is given on the thread that
        computes.
        """
        return LedGroup(
            rank_facts(self._placement.rank, self._loaded),
            self._settings.group_timeout,
            self._store.port,
            server,
            lambda say, on_fatal: RankWorker(self.engine, self._meeting, post, say, on_fatal),
        )

    async def measured(self, group: LedGroup) -> WorkerFacts:
        """What the group announces, once its cost model has been measured or an earlier one was read. Waits for ranks
        as long as it takes.
        """
        backoff = Backoff()
        while self._meeting.profile is None:
            try:
                await group.measure(Epoch(time.time_ns()))
            except UnreachableError as error:
                _log.warning("the model was not measured: %s; trying again", error)
                await asyncio.sleep(backoff.next_s())
        return self._loaded.facts(self._meeting.profile.cost)
