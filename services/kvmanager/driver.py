"""The owner of the KV manager's state: one task that takes all events since the last turn, passes them to the
machine, and sends its commands out, one batch per peer.

Handlers post what they receive to the inbox and write whatever is in their peer's outbox; only this task changes the
machine. A turn contains no await. Only the newest stream of the scheduler and the newest epoch of the worker count;
messages from older ones are dropped.

When a peer breaks the protocol, both streams and the machine end: the scheduler dials again, the worker begins a new
epoch, and all KV is recomputed.
"""

import asyncio
import logging
from collections.abc import Sequence

from services.domain.errors import FastServeError, NotReadyError, PeerMismatchError, ProtocolError, SupersededError
from services.domain.ids import Epoch
from services.domain.protocol import KvToWorker
from services.domain.server_status import KvLinkItem, PoolStatus, PoolUsage
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.kv_manager_inbox import (
    Inbound,
    KvWorkerArrived,
    KvWorkerLeft,
    KvWorkerSaid,
    SchedulerArrived,
    SchedulerLeft,
    SchedulerSaid,
)
from services.kvmanager.kv_streams import KvWorkerStream, SchedulerStream
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    Command,
    EndWorker,
    Event,
    FromScheduler,
    FromWorker,
    KvWorkerLost,
    SchedulerConnected,
    SchedulerLost,
    ToScheduler,
    ToWorker,
)
from services.kvmanager.policies.kv_config import KvConfig
from services.runtime.inbox import Inbox, Wakeup
from services.runtime.recording.recorder import Recorder

_log = logging.getLogger(__name__)

MOST_INBOX = 10_000
"""Turns of peers; beyond this, they wait in their streams."""
STATUS_PERIOD_S = 0.1
MOST_BLOCKS = 1 << 24


class KvManagerDriver:
    """Runs the machine; `recorder` sees every turn. Must be created on its event loop."""

    def __init__(self, knobs: KvConfig, recorder: Recorder | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._knobs = knobs
        self._recorder = recorder
        self._begin()
        self.inbox: Inbox[Inbound] = Inbox(MOST_INBOX)
        """Where the streams post what they receive."""
        self._scheduler: SchedulerStream | None = None
        self._worker: KvWorkerStream | None = None
        """The newest epoch's stream."""
        self._newest_epoch = Epoch(0)
        self._told: PoolUsage | None = None
        self._told_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.pool_usage: PoolUsage | None = None
        """State of the pools after the last turn, readable from any thread; None without a worker or a scheduler."""

    # --- for the streams ---------------------------------------------------------------------------------------------

    def check_worker(self, facts: KvWorkerFacts) -> None:
        """Raises PeerMismatchError for pools that can't be used, SupersededError for an old epoch."""
        pools = facts.pools
        for field, value, least, most in (
            ("group", facts.group, 0, 0),
            ("block_size", pools.block_size, 1, 1024),
            ("device_blocks", pools.device_block_count, 1, MOST_BLOCKS),
            ("host_blocks", pools.host_block_count, 0, MOST_BLOCKS),
        ):
            if not least <= value <= most:
                raise PeerMismatchError(field, f"is {value}, but must be between {least} and {most}")
        self._check_epoch(pools.epoch)

    def _check_epoch(self, epoch: Epoch) -> None:
        if epoch <= self._newest_epoch:
            raise SupersededError(f"worker epoch {epoch} is not newer than epoch {self._newest_epoch}")

    # --- turns -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Takes turns forever; it returns only because of a bug."""
        while True:
            self._turn(await self.inbox.take())

    def close(self) -> None:
        """The service is shutting down: end all streams, so that the peers dial again."""
        self._end_streams(NotReadyError("the KV manager is shutting down"))

    def _begin(self) -> None:
        """Start with an empty machine."""
        self._machine = KvManager(self._knobs)
        handle = self._machine.handle
        self._handle = handle if self._recorder is None else self._recorder.watching(handle)

    def _turn(self, items: Sequence[Inbound]) -> None:
        events: list[Event] = []
        for item in items:
            events += self._heard(item)
        try:
            commands = self._handle(events, self._loop.time())
        except ProtocolError as error:
            _log.error("dropping all connections and starting over after a protocol error: %s", error)
            self._begin()
            self._end_streams(error)
            commands = []
        self._execute(commands)

    def _heard(self, item: Inbound) -> list[Event]:
        """Translate an inbox item into events of the machine."""
        match item:
            case SchedulerSaid(peer, epoch, messages):
                return [FromScheduler(epoch, message) for message in messages] if peer is self._scheduler else []
            case KvWorkerSaid(peer, epoch, answers):
                is_known = self._worker is peer and epoch == peer.epoch
                return [FromWorker(epoch, message) for message in answers] if is_known else []
            case SchedulerArrived(peer):
                return self._scheduler_arrived(peer)
            case SchedulerLeft(peer):
                if peer is self._scheduler:
                    self._scheduler = None
                    _log.warning("scheduler lost")
                    return [SchedulerLost()]
            case KvWorkerArrived(peer, facts):
                return self._worker_arrived(peer, facts)
            case KvWorkerLeft(peer):
                if self._worker is peer:
                    _log.warning("worker of epoch %d lost", peer.epoch)
                    self._worker = None
                    return [KvWorkerLost(peer.epoch)]
            case Wakeup():
                self._timer = None
        return []

    def _scheduler_arrived(self, peer: SchedulerStream) -> list[Event]:
        """The newest stream is the scheduler's; an older one is closed."""
        events: list[Event] = []
        if self._scheduler is not None:
            self._scheduler.close(SupersededError("a newer stream of the scheduler took over"))
            events.append(SchedulerLost())
        self._scheduler = peer
        self._told = None
        _log.info("scheduler connected")
        return [*events, SchedulerConnected()]

    def _worker_arrived(self, peer: KvWorkerStream, facts: KvWorkerFacts) -> list[Event]:
        """A newer epoch ends the previous one."""
        try:
            self._check_epoch(peer.epoch)
        except SupersededError as error:
            # Another worker joined between this one's hello and this turn.
            peer.close(error)
            return []
        self._end_worker(SupersededError(f"a worker with the newer epoch {peer.epoch} took over"))
        self._newest_epoch, self._worker = peer.epoch, peer
        pools = facts.pools
        _log.info(
            "worker of epoch %d joined with %d device blocks and %d host blocks of %d tokens",
            peer.epoch,
            pools.device_block_count,
            pools.host_block_count,
            pools.block_size,
        )
        return [FromWorker(peer.epoch, pools)]

    def _end_worker(self, error: FastServeError) -> None:
        if self._worker is not None:
            self._worker.close(error)
            self._worker = None

    def _end_streams(self, error: FastServeError) -> None:
        self._end_worker(error)
        if self._scheduler is not None:
            self._scheduler.close(error)
            self._scheduler = None

    # --- commands ----------------------------------------------------------------------------------------------------

    def _execute(self, commands: Sequence[Command]) -> None:
        """Send a turn's commands, one batch per peer. All commands of a turn belong to one epoch."""
        to_scheduler: list[KvLinkItem] = []
        to_worker: list[KvToWorker] = []
        for command in commands:
            match command:
                case ToScheduler(_, message):
                    to_scheduler.append(message)
                case ToWorker(_, message):
                    to_worker.append(message)
                case EndWorker(epoch):
                    _log.warning("ending worker epoch %d: its block tables are void without the scheduler", epoch)
                    self._end_worker(NotReadyError("the scheduler was lost, so this epoch's block tables are void"))
        to_scheduler += self._status()
        epoch = self._machine.epoch
        if to_worker and self._worker is not None:
            self._worker.put((epoch, to_worker))
        if to_scheduler and self._scheduler is not None:
            self._scheduler.put((epoch, to_scheduler))

    def _status(self) -> list[KvLinkItem]:
        """Figures for operators: only after a change, and at most once per STATUS_PERIOD_S."""
        self.pool_usage = figures = self._machine.pool_usage()
        if figures is None or (figures == self._told and not self._machine.has_swaps):
            return []
        wait_s = self._told_s + STATUS_PERIOD_S - self._loop.time()
        if wait_s > 0:
            if self._timer is None:
                self._timer = self._loop.call_later(wait_s, self.inbox.post, Wakeup())
            return []
        self._told, self._told_s = figures, self._loop.time()
        swaps = self._machine.take_swaps()
        name = self._knobs.policy.name
        return [
            PoolStatus(
                figures.device_blocks_free, figures.host_blocks_free, name, swaps.out_job_ids, swaps.back_job_ids
            )
        ]
