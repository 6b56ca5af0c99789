"""The owner of the KV manager's state: one task that takes all events since the last turn, passes them to the machines
of the worker groups, and sends their commands out, one batch per group and peer.

Handlers post what they receive to the inbox and write whatever is in their peer's outbox; only this task changes a
machine. A turn contains no await. Only the newest stream of the scheduler and the newest epoch of a group's worker
count; messages from older ones are dropped. A group exists from its first mention by a peer.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from services.domain.errors import NotReadyError, PeerMismatchError, SupersededError
from services.domain.ids import MOST_GROUPS, Epoch
from services.domain.server_status import PoolUsage
from services.domain.worker_facts import KvWorkerFacts
from services.kvmanager.copy_traces import CopyTraces
from services.kvmanager.enst_errors import EnstErrors, OnJudged
from services.kvmanager.kv_group import KvGroup, check_pools
from services.kvmanager.kv_manager_inbox import (
    Inbound,
    KvWorkerArrived,
    KvWorkerLeft,
    KvWorkerSaid,
    SchedulerArrived,
    SchedulerBroke,
    SchedulerLeft,
    SchedulerSaid,
)
from services.kvmanager.kv_streams import SchedulerStream
from services.kvmanager.machine.kv_manager_events import Event, FromScheduler, SchedulerConnected, SchedulerLost
from services.kvmanager.policies.kv_config import KvConfig
from services.runtime.inbox import Inbox, Wakeup
from services.runtime.recording.recorder import Recorder

_log = logging.getLogger(__name__)

MOST_INBOX = 10_000
"""Turns of peers; beyond this, they wait in their streams."""

Events = dict[int, list[Event]]
"""The events of a turn, by group."""


class KvManagerDriver:
    """Runs the machines; `recorder_of` makes the recorder of a new group, `on_enst_judged` hears how good the estimates
    of ENST were, `traces` are of sampled jobs. Must be created on its event loop.
    """

    def __init__(
        self,
        knobs: KvConfig,
        recorder_of: Callable[[int], Recorder | None] = lambda group: None,
        on_enst_judged: OnJudged | None = None,
        traces: CopyTraces | None = None,
    ) -> None:
        self._on_enst_judged = on_enst_judged
        self.traces = traces
        self._loop = asyncio.get_running_loop()
        self._knobs = knobs
        self._recorder_of = recorder_of
        self._groups: dict[int, KvGroup] = {}
        self.inbox: Inbox[Inbound] = Inbox(MOST_INBOX)
        """Where the streams post what they receive."""
        self._scheduler: SchedulerStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._group(0)

    # --- for the streams ---------------------------------------------------------------------------------------------

    def check_worker(self, facts: KvWorkerFacts) -> None:
        """Raises PeerMismatchError for a group or pools that can't be used, SupersededError for an old epoch."""
        if not 0 <= facts.group < MOST_GROUPS:
            raise PeerMismatchError("group", f"is {facts.group}, but must be between 0 and {MOST_GROUPS - 1}")
        check_pools(facts.pools)
        if (group := self._groups.get(facts.group)) is not None:
            group.check_epoch(facts.pools.epoch)

    @property
    def newest_epoch(self) -> Epoch:
        """The greatest epoch of a worker so far; 0 before the first."""
        return max((group.newest_epoch for group in self._groups.values()), default=Epoch(0))

    def pool_usages(self) -> list[tuple[int, PoolUsage | None]]:
        """By group, the pools after the last turn; None without a worker or a scheduler. Callable from any thread."""
        return [(number, group.pool_usage) for number, group in sorted(self._groups.copy().items())]

    # --- turns -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Takes turns forever; it returns only because of a bug."""
        while True:
            self._turn(await self.inbox.take())

    def close(self) -> None:
        """The service is shutting down: end all streams, so that the peers dial again."""
        error = NotReadyError("the KV manager is shutting down")
        for group in self._groups.values():
            group.end_worker(error)
        if self._scheduler is not None:
            self._scheduler.close(error)
            self._scheduler = None

    def _group(self, number: int) -> KvGroup:
        group = self._groups.get(number)
        if group is None:
            judged = self._on_enst_judged
            group = self._groups[number] = KvGroup(
                number,
                self._knobs,
                self._recorder_of(number),
                self._wake_in,
                None if judged is None else EnstErrors(number, judged),
                None if self.traces is None else self.traces.heard,
            )
        return group

    def _turn(self, items: Sequence[Inbound]) -> None:
        events: Events = {}
        for item in items:
            self._hear(item, events)
        now_s = self._loop.time()
        for group in list(self._groups.values()):
            epoch, messages = group.decide(events.get(group.number, ()), now_s)
            if messages and self._scheduler is not None:
                self._scheduler.put((group.number, epoch, messages))

    def _hear(self, item: Inbound, events: Events) -> None:
        """Translate an inbox item into events of the machines."""
        match item:
            case SchedulerSaid(peer, number, epoch, messages):
                if peer is self._scheduler:
                    self._group(number)
                    _add(events, number, [FromScheduler(epoch, message) for message in messages])
            case SchedulerBroke(peer, number, error):
                if peer is self._scheduler:
                    self._group(number).start_over(error)
                    events.pop(number, None)
            case KvWorkerSaid(peer, epoch, answers):
                _add(events, peer.group, self._group(peer.group).worker_said(peer, epoch, answers))
            case SchedulerArrived(peer):
                self._scheduler_arrived(peer, events)
            case SchedulerLeft(peer):
                if peer is self._scheduler:
                    self._scheduler = None
                    _log.warning("scheduler lost")
                    self._tell_all(events, SchedulerLost())
            case KvWorkerArrived(peer, facts):
                _add(events, peer.group, self._group(peer.group).worker_arrived(peer, facts))
            case KvWorkerLeft(peer):
                _add(events, peer.group, self._group(peer.group).worker_left(peer))
            case Wakeup():
                self._timer = None

    def _scheduler_arrived(self, peer: SchedulerStream, events: Events) -> None:
        """The newest stream is the scheduler's; an older one is closed."""
        if self._scheduler is not None:
            self._scheduler.close(SupersededError("a newer stream of the scheduler took over"))
            self._tell_all(events, SchedulerLost())
        self._scheduler = peer
        for group in self._groups.values():
            group.scheduler_changed()
        _log.info("scheduler connected")
        self._tell_all(events, SchedulerConnected())

    def _tell_all(self, events: Events, event: Event) -> None:
        for number in self._groups:
            _add(events, number, [event])

    def _wake_in(self, seconds: float) -> None:
        """Take another turn soon; a group that needs it later asks again."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self.inbox.post, Wakeup())


def _add(events: Events, number: int, more: Sequence[Event]) -> None:
    events.setdefault(number, []).extend(more)
