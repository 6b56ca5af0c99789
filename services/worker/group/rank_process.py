"""The process of a rank that does not lead: it loads its share of the model, connects to its leader, and does what that
says. The main thread computes; others hear and speak. No event loop, no gRPC.
"""

import logging
import queue
import threading
from collections.abc import Callable

from services.domain.errors import FastServeError
from services.runtime.process import write_ready_file
from services.runtime.settings import Address, split_address
from services.worker.build import guides_of, load_rank_of
from services.worker.engine.engine import Engine
from services.worker.group.meeting import Meeting, rank_facts, rank_identity, read_leader, stay_on_loopback
from services.worker.group.placement import RankPlacement
from services.worker.group.rank_connection import LeaderConnection, ask_layers
from services.worker.group.rank_worker import RankWorker
from services.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)


def run_rank(settings: WorkerSettings, placement: RankPlacement) -> None:
    """Works until the process is ended. Raises PeerMismatchError when the leader refuses this rank, and whatever makes
    the rank of no use.
    """
    rank = placement.rank
    address = _Leader(placement)
    if placement.leader is not None:
        stay_on_loopback(split_address(placement.leader).host)
    first_layers = ask_layers(address, rank_identity(rank, settings))
    loaded = load_rank_of(settings, rank, placement.local_rank, first_layers)
    engine = Engine(loaded.model, loaded.pools, rank=rank, guides=guides_of(settings.model) if rank.samples else None)
    meeting = Meeting(rank, loaded, engine, address.host)
    ends: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    computing: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def end(error: Exception) -> None:
        ends.put(error)
        worker.stop_soon()

    facts = rank_facts(rank, loaded)
    connection = LeaderConnection(
        address,
        facts,
        lambda said: worker.hear(said),
        lambda: worker.lose_leader(),
        lambda: _announce(settings, address.known),
    )
    worker = RankWorker(engine, meeting, computing.put, connection.say, end)

    def hear() -> None:
        try:
            connection.run()
        except FastServeError as error:
            end(error)

    threading.Thread(target=hear, daemon=True, name="from-leader").start()
    computing.get()()
    engine.close()
    raise ends.get()


class _Leader:
    """Where the leader listens, as of the last time that somebody asked."""

    def __init__(self, placement: RankPlacement) -> None:
        self._placement = placement
        self.known: Address = placement.leader or ""

    def __call__(self) -> Address:
        if self._placement.store is not None:
            self.known = read_leader(self._placement.store)
        return self.known

    def host(self) -> str:
        return split_address(self.known).host


def _announce(settings: WorkerSettings, leader: Address) -> None:
    """Says that this rank has joined, as a service says that it is ready."""
    if settings.ready_file is not None and not settings.ready_file.exists():
        write_ready_file(settings.ready_file, leader, None)
