"""One worker group in the KV manager's service: its machine, its worker's stream, and what was told of its pools.

Groups share the scheduler's stream and nothing else. When a peer breaks the protocol of a group, its machine starts
over and its worker's stream ends; the worker begins a new epoch, and all KV of the group is recomputed. The scheduler
notices by the worker's new epoch, and its stream stays open for the other groups. Called within the driver's turn.
"""

import logging
from collections.abc import Callable, Sequence

from services.domain.errors import FastServeError, NotReadyError, PeerMismatchError, ProtocolError, SupersededError
from services.domain.ids import Epoch
from services.domain.protocol import Applied, Done, KvToWorker, WorkerPools
from services.domain.server_status import KvLinkItem, PoolStatus, PoolUsage
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.enst_errors import EnstErrors
from services.kvmanager.kv_streams import KvWorkerStream
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    Command,
    EndWorker,
    Event,
    FromWorker,
    KvWorkerLost,
    ToScheduler,
    ToWorker,
)
from services.kvmanager.policies.kv_config import KvConfig
from services.runtime.recording.recorder import Recorder

_log = logging.getLogger(__name__)

STATUS_PERIOD_S = 0.1
MOST_BLOCKS = 1 << 24


def check_pools(pools: WorkerPools) -> None:
    """Raises PeerMismatchError for pools that can't be used."""
    for field, value, least, most in (
        ("block_size", pools.block_size, 1, 1024),
        ("device_blocks", pools.device_block_count, 1, MOST_BLOCKS),
        ("host_blocks", pools.host_block_count, 0, MOST_BLOCKS),
    ):
        if not least <= value <= most:
            raise PeerMismatchError(field, f"is {value}, but must be between {least} and {most}")


HearTurn = Callable[[int, Sequence[Event], Sequence[Command], float], None]
"""Called after every turn of a group's machine: its group, what it was given, what it answered, and the time."""


class KvGroup:
    """The group with this number. `recorder`, `enst_errors` and `hear` see every turn; `wake_in` asks for a turn after
    so many seconds.
    """

    def __init__(
        self,
        number: int,
        knobs: KvConfig,
        recorder: Recorder | None,
        wake_in: Callable[[float], None],
        enst_errors: EnstErrors | None = None,
        hear: HearTurn | None = None,
    ) -> None:
        self.number = number
        self._enst_errors = enst_errors
        self._knobs = knobs
        self._hear = hear
        self._recorder = recorder
        self._wake_in = wake_in
        self._begin()
        self._worker: KvWorkerStream | None = None
        """The newest epoch's stream."""
        self.newest_epoch = Epoch(0)
        """The greatest epoch of its workers; 0 before the first."""
        self._told: PoolUsage | None = None
        self._told_s = 0.0
        self._changed_s: float | None = None
        """Since when they differ from what was told."""
        self.pool_usage: PoolUsage | None = None
        """State of the pools after the last turn, readable from any thread; None without a worker or a scheduler."""

    def _begin(self) -> None:
        """Start with an empty machine."""
        self._machine = KvManager(self._knobs)
        handle = self._machine.handle
        self._handle = handle if self._recorder is None else self._recorder.watching(handle)

    # --- the worker --------------------------------------------------------------------------------------------------

    def check_epoch(self, epoch: Epoch) -> None:
        """Raises SupersededError for an old epoch."""
        if epoch <= self.newest_epoch:
            raise SupersededError(f"worker epoch {epoch} is not newer than epoch {self.newest_epoch}")

    def worker_arrived(self, peer: KvWorkerStream, facts: KvWorkerFacts) -> list[Event]:
        """A newer epoch ends the previous one."""
        try:
            self.check_epoch(peer.epoch)
        except SupersededError as error:
            # Another worker joined between this one's hello and this turn.
            peer.close(error)
            return []
        self.end_worker(SupersededError(f"a worker with the newer epoch {peer.epoch} took over"))
        self.newest_epoch, self._worker = peer.epoch, peer
        pools = facts.pools
        _log.info(
            "group %d: worker of epoch %d joined with %d device blocks and %d host blocks of %d tokens",
            self.number,
            peer.epoch,
            pools.device_block_count,
            pools.host_block_count,
            pools.block_size,
        )
        return [FromWorker(peer.epoch, pools)]

    def worker_said(self, peer: KvWorkerStream, epoch: Epoch, answers: Sequence[Applied | Done]) -> list[Event]:
        is_known = self._worker is peer and epoch == peer.epoch
        return [FromWorker(epoch, message) for message in answers] if is_known else []

    def worker_left(self, peer: KvWorkerStream) -> list[Event]:
        """A stream ended, and with it the epoch."""
        if self._worker is not peer:
            return []
        _log.warning("group %d: worker of epoch %d lost", self.number, peer.epoch)
        self._worker = None
        return [KvWorkerLost(peer.epoch)]

    def end_worker(self, error: FastServeError) -> None:
        """End the worker's stream."""
        if self._worker is not None:
            self._worker.close(error)
            self._worker = None

    # --- turns -------------------------------------------------------------------------------------------------------

    def decide(self, events: Sequence[Event], now_s: float) -> tuple[Epoch, list[KvLinkItem]]:
        """A turn of the machine, if it heard something: what is to be sent to the scheduler, and the epoch that it is
        about. Commands for the worker are sent.
        """
        commands: Sequence[Command] = ()
        try:
            if events:
                commands = self._handle(events, now_s)
                if self._enst_errors is not None:
                    self._enst_errors.after_turn(self._machine, events, now_s)
        except ProtocolError as error:
            self.start_over(error)
        if self._hear is not None and events:
            self._hear(self.number, events, commands, now_s)
        messages = self._execute(commands)
        return self._machine.epoch, [*messages, *self._status(now_s, bool(messages))]

    def start_over(self, error: ProtocolError) -> None:
        """A peer broke the protocol: forget everything, and end the worker's stream."""
        _log.error("group %d: starting over after a protocol error: %s", self.number, error)
        self._begin()
        self.end_worker(error)

    def scheduler_changed(self) -> None:
        """The scheduler's next stream has been told nothing yet."""
        self._told = None

    def _execute(self, commands: Sequence[Command]) -> list[KvLinkItem]:
        """Send the commands of a turn to the worker, all in one batch, and return those for the scheduler. All commands
        of a turn belong to one epoch.
        """
        to_scheduler: list[KvLinkItem] = []
        to_worker: list[KvToWorker] = []
        for command in commands:
            match command:
                case ToScheduler(_, message):
                    to_scheduler.append(message)
                case ToWorker(_, message):
                    to_worker.append(message)
                case EndWorker(epoch):
                    _log.warning("group %d: ending worker epoch %d, void without the scheduler", self.number, epoch)
                    self.end_worker(NotReadyError("the scheduler was lost, so this epoch's block tables are void"))
        if to_worker and self._worker is not None:
            self._worker.put((self._machine.epoch, to_worker))
        return to_scheduler

    def _status(self, now_s: float, has_company: bool) -> list[KvLinkItem]:
        """Figures for operators: only after a change, and at most once per STATUS_PERIOD_S. So long they wait for
        `has_company`, other messages to travel with: a message of their own would wake the scheduler for them.
        """
        self.pool_usage = figures = self._machine.pool_usage()
        if figures is None or (figures == self._told and not self._machine.has_swaps):
            self._changed_s = None
            return []
        if self._changed_s is None:
            self._changed_s = now_s
        wait_s = (self._told_s if has_company else max(self._told_s, self._changed_s)) + STATUS_PERIOD_S - now_s
        if wait_s > 0:
            self._wake_in(wait_s)
            return []
        self._told, self._told_s, self._changed_s = figures, now_s, None
        swaps = self._machine.take_swaps()
        name = self._knobs.policy.name
        return [
            PoolStatus(
                figures.device_blocks_free, figures.host_blocks_free, name, swaps.out_job_ids, swaps.back_job_ids
            )
        ]
