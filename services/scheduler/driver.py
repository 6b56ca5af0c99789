"""The owner of the scheduler's state: one task that takes all events since the last turn, passes them to the machines
of the worker groups, and carries out the commands they return. The router says which group gets a job, and which jobs
move. A group begins with its first worker and is forgotten some time after its last.

Handlers and links post what they receive to the inbox and write whatever is in their peer's outbox; only this task
changes a machine or the job store. A turn contains no await, so a link that breaks and comes back is always seen in
that order. The clock is read once per turn.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from services.domain.errors import NotReadyError
from services.domain.group_backlog import GroupBacklog
from services.domain.ids import JobId
from services.domain.server_status import ServerStatus
from services.domain.submission import ServingLimits
from services.domain.worker_facts import WorkerFacts
from services.runtime.inbox import Inbox, Wakeup
from services.runtime.recording.recorder import Recorder
from services.runtime.terms import NO_TERM
from services.scheduler.gateways import Gateways, NewJob
from services.scheduler.job_store import JobStore
from services.scheduler.job_traces import JobTraces
from services.scheduler.living_groups import WorkerGroups
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Emit,
    End,
    Event,
    KvConnected,
    KvLost,
    MovingJob,
    Reject,
    TakeIn,
    Tick,
    Withdraw,
    Withdrawn,
)
from services.scheduler.outgoing_streams import WorkerStream
from services.scheduler.routing.router import MOST_MOVES, Router
from services.scheduler.routing.worker_claims import WorkerClaims
from services.scheduler.scheduler_inbox import (
    GATHER_S,
    Cancelled,
    GatewayJoined,
    GatewayLeft,
    Inbound,
    KvBroke,
    KvClosed,
    KvMet,
    KvOpened,
    KvSaid,
    Submitted,
    WorkerArrived,
    WorkerDrains,
    WorkerGaveBack,
    WorkerLeft,
    WorkerSaid,
)
from services.scheduler.worker_group import KvLine, ServedSetup, WorkerGroup, check_agrees, check_fits

_log = logging.getLogger(__name__)

MOST_INBOX = 20_000
"""Submissions and cancels beyond it wait at their streams; results and residency never do."""
LAST_WORDS_LIMIT_S = 1.0

Events = defaultdict[int, list[Event]]
"""The events of a turn, by group."""


class SchedulerDriver:
    """Runs the machines. `on_ready` is called whenever it changes whether jobs can run; `recorder_of` makes a new
    group's recorder. Must be created on its event loop.
    """

    def __init__(
        self,
        served: ServedSetup,
        kv: KvLine,
        on_ready: Callable[[bool], None],
        recorder_of: Callable[[int], Recorder | None] = lambda group: None,
        traces: JobTraces | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._served = served
        self._on_ready = on_ready
        self._gateways = Gateways(served.vocabulary_size, traces)
        self._router = Router(served.config, {}, served.max_model_len)
        self._groups = WorkerGroups(served.config, self._router, kv, self._gateways.jobs.work, recorder_of, traces)
        self._claims = WorkerClaims()
        self.inbox: Inbox[Inbound] = Inbox(MOST_INBOX, GATHER_S)
        """Where handlers and links post what they receive."""
        self._term: int | None = NO_TERM
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._was_ready = False
        self._is_over = False
        self._started_s = self._clock()

    @property
    def term(self) -> int | None:
        """The term in which it leads; None: it is on standby, and takes no peers."""
        return self._term

    @term.setter
    def term(self, term: int | None) -> None:
        self._term = term
        if term is not None:
            self._claims.begin_term(term)

    @property
    def jobs(self) -> JobStore:
        """Where gateway streams find new output."""
        return self._gateways.jobs

    @property
    def limits(self) -> ServingLimits:
        """Limits that a job must meet: the model's, or those of the group with the most room."""
        return self._router.limits

    def check_gateway(self, model_fingerprint: str) -> None:
        """Raises PeerMismatchError for a gateway that serves a different model, NotReadyError while on standby."""
        self.check_leads()
        check_agrees("model_fingerprint", model_fingerprint, self._served.model_fingerprint)

    def admit_worker(self, facts: WorkerFacts) -> WorkerStream:
        """The stream of a worker that said hello, with its epoch; `worker_left` must follow. Raises PeerMismatchError
        for an incompatible worker, GroupTakenError for a group that has one, NotReadyError while on standby.
        """
        self.check_leads()
        check_fits(facts, self._served)
        epoch = self._claims.claim(facts.group, facts.worker_id, facts.last_epoch, facts.device, self._clock())
        stream = WorkerStream(epoch, facts.group)
        self.inbox.post(WorkerArrived(stream, facts))
        return stream

    def worker_left(self, stream: WorkerStream) -> None:
        """The stream has ended: the group is free for the next worker."""
        self._claims.release(stream.group, stream.epoch)
        self.inbox.post(WorkerLeft(stream))

    def check_leads(self) -> None:
        """Raises NotReadyError unless peers may dial this scheduler now."""
        if self._is_over:
            raise NotReadyError("the scheduler is shutting down")
        if self.term is None:
            raise NotReadyError("this scheduler is on standby: dial the one that leads")

    def status(self, max_jobs: int = 0) -> ServerStatus:
        """A snapshot of the server, with up to `max_jobs` jobs one by one. O(jobs)."""
        groups, totals = self._groups.sorted(), self._groups.totals
        return ServerStatus(
            model=self._served.model_name,
            policy=self._served.config.policy.value,
            kv_policy=next((group.kv_policy for group in groups if group.kv_policy), ""),
            groups=tuple(group.status() for group in groups),
            counters=totals.counters(groups),
            uptime_s=self._clock() - self._started_s,
            max_queued_jobs=self._served.config.max_queued_jobs,
            rejections=totals.rejections(groups, self._router.rejections),
            iteration_tokens=totals.iteration_tokens(groups),
            listed_jobs=self._groups.first_jobs(max_jobs),
            unplaced_jobs=len(self._router.room),
        )

    def backlogs(self) -> list[GroupBacklog | None]:
        """What each group's jobs still cost; None: jobs wait, and no worker has said what they cost. O(groups)."""
        backlogs = [group.machine.iterations.backlog.predicted() for group in self._groups.values()]
        return [*backlogs, None] if self._router.room else backlogs

    def ready_groups(self) -> int:
        """Groups that serve, and will go on."""
        return sum(group.machine.ready() and not group.draining for group in self._groups.values())

    async def run(self) -> None:
        """Takes turns forever; it returns only because of a bug."""
        while True:
            self._turn(await self.inbox.take())

    async def drain(self, limit_s: float) -> None:
        """Stops admitting jobs and gives those that a gateway follows `limit_s` seconds to end. What is left goes on
        with the next scheduler: the gateways submit it there.
        """
        self._gateways.draining = True
        self._note_idle()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), limit_s)
        left = len(self._router.jobs)
        if left:
            _log.warning("%d jobs that did not end within %g s wait for the next scheduler", left, limit_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gateways.flushed(), LAST_WORDS_LIMIT_S)
        self.hand_over()

    def hand_over(self) -> None:
        """Ends all streams; the peers dial again, and reach whoever leads by then."""
        self._is_over = True
        goodbye = NotReadyError("the scheduler is shutting down")
        self._gateways.close_all(goodbye)
        self._close_workers(goodbye)

    def _turn(self, items: Iterable[Inbound]) -> None:
        now_s = self._clock()
        events = Events(list)
        for item in (*self._gateways.take_deferred(), *items):
            self._hear(item, events, now_s)
        for cancel in self._gateways.expire(now_s):
            self._cancel(cancel, events, now_s)
        for end in self._router.expire_waiting(now_s):
            self._gateways.end(end, now_s)
        self._decide(events, now_s)
        if self._gateways.can_retry(self._knows):
            self.inbox.post(Wakeup())

    def _decide(self, events: Mapping[int, Sequence[Event]], now_s: float) -> None:
        """Ask the machines of the groups that heard something, and carry out their commands. Then jobs move."""
        for number, group in self._groups.items():
            if events.get(number):
                self._ask(group, events[number], now_s)
        self._move_jobs(now_s)
        self._place_jobs(now_s)
        self._groups.settle(now_s)
        self._note_idle()
        is_ready = any(group.machine.ready() for group in self._groups.values())
        if is_ready is not self._was_ready:
            self._was_ready = is_ready
            self._on_ready(is_ready)
        self._set_timer()

    def _note_idle(self) -> None:
        """Says whether nobody waits for a job: one without followers is kept for a client that comes back here."""
        has_jobs = self._router.jobs or any(group.machine.jobs for group in self._groups.values())
        if has_jobs and not (self._gateways.draining and not self.jobs.has_followed()):
            self._is_idle.clear()
        else:
            self._is_idle.set()

    def _ask(self, group: WorkerGroup, events: Sequence[Event], now_s: float) -> list[MovingJob]:
        """A turn of a group. Returns the jobs that left it."""
        withdrawn = self._execute(group, group.decide(events, now_s), now_s)
        group.end_turn()
        return withdrawn

    def _move_jobs(self, now_s: float) -> None:
        """Carry out the router's moves: in one more turn of each group that jobs leave, and of each that they join."""
        for number, hold in self._router.holds(now_s):
            self._ask(self._groups[number], (hold,), now_s)
        moves = self._router.moves()
        targets = {move.job_id: move.to_group for move in moves}
        arriving: dict[int, list[Event]] = {}
        for number in dict.fromkeys(move.from_group for move in moves):
            leaving = [Withdraw(move.job_id) for move in moves if move.from_group == number]
            for job in self._ask(self._groups[number], leaving, now_s):
                arriving.setdefault(targets[job.job_id], []).append(TakeIn(job))
        for number, events in arriving.items():
            self._ask(self._groups[number], events, now_s)
        if len(moves) == MOST_MOVES:
            self.inbox.post(Wakeup())

    def _place_jobs(self, now_s: float) -> None:
        """Jobs that waited for a group go to the ones that have come."""
        placed = self._router.placements(now_s)
        events = Events(list)
        for one in placed:
            if isinstance(one, Reject):
                self._gateways.reject(one, now_s)
            else:
                events[one.group].append(one.submit)
        for number, submits in events.items():
            self._ask(self._groups[number], submits, now_s)
        if len(placed) == MOST_MOVES:
            self.inbox.post(Wakeup())

    def _set_timer(self) -> None:
        """Wake up when a machine, the job store, a job without a group, or a group without jobs has something due."""
        wakes_s = (group.wake_s for group in self._groups.values())
        wanted_s = (*wakes_s, self.jobs.due_s(), self._router.next_s(), self._groups.forget_s)
        next_s = min((time_s for time_s in wanted_s if time_s is not None), default=None)
        if next_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = None if next_s is None else self._loop.call_at(next_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_s = None
        self.inbox.post(Wakeup())

    def _knows(self, job_id: JobId) -> bool:
        """Whether the job waits for a group, or some group has not released this id yet."""
        return job_id in self._router.room or any(group.machine.knows(job_id) for group in self._groups.values())

    def _cancel(self, cancel: Cancel | None, events: Events, now_s: float) -> None:
        """Pass a cancellation on to the job's group, or end a job that waits for one. It may just have ended."""
        if cancel is None:
            return
        number = self._router.group_of(cancel.job_id)
        if number is not None:
            events[number].append(cancel)
        elif (end := self._router.cancel_waiting(cancel.job_id, cancel.reason, now_s)) is not None:
            self._gateways.end(end, now_s)

    def _hear(self, item: Inbound, events: Events, now_s: float) -> None:
        """Translate an inbox item into events of the machines."""
        match item:
            case WorkerSaid(stream, result):
                group = self._groups.get(stream.group)
                if group is not None and (event := group.worker_said(stream, result)) is not None:
                    self._gateways.score(result.scored)
                    events[stream.group].append(event)
            case Submitted():
                new = self._gateways.submit(item, self._knows(item.submission.job_id), now_s)
                if new is not None:
                    self._route(new, events, now_s)
            case Cancelled():
                self._cancel(self._gateways.cancel(item), events, now_s)
            case GatewayJoined(stream):
                self._gateways.join(stream, now_s)
                # The limits may have changed since the welcome was written.
                stream.tell_limits(self.limits)
            case GatewayLeft(stream):
                self._gateways.leave(stream, now_s)
            case WorkerArrived(stream, facts):
                joined = self._groups.begun(stream.group, events[stream.group]).worker_arrived(stream, facts)
                self._router.joined(stream.group, joined)
                self._gateways.tell_limits(self.limits)
                events[stream.group].append(joined)
            case WorkerLeft(stream):
                if (group := self._groups.get(stream.group)) is not None:
                    if (event := group.worker_left(stream)) is not None:
                        events[stream.group].append(event)
                    if not group.draining:
                        self._router.stopped(stream.group)
            case WorkerGaveBack(stream, given_back):
                events[stream.group].append(given_back)
            case WorkerDrains(stream, limit_s):
                if (group := self._groups.get(stream.group)) is not None and group.drains(stream):
                    self._router.drain(stream.group, limit_s, now_s)
            case KvSaid(number, epoch, messages):
                if (group := self._groups.get(number)) is not None:
                    events[number].extend(group.kv_said(epoch, messages))
            case KvBroke(number, error):
                if (group := self._groups.get(number)) is not None:
                    group.close(NotReadyError(str(error)))
            case KvMet(newest_epoch):
                if self._claims.outlived_by(newest_epoch):
                    self._close_workers(NotReadyError(f"the KV manager has met the worker epoch {newest_epoch}"))
            case _:
                self._hear_of_all(item, events)

    def _hear_of_all(self, item: KvOpened | KvClosed | Wakeup, events: Events) -> None:
        if not isinstance(item, Wakeup):
            self._groups.kv_is_open = isinstance(item, KvOpened)
        for number, group in self._groups.items():
            match item:
                case KvOpened():
                    events[number].append(KvConnected())
                case KvClosed():
                    group.forget_pools()
                    events[number].append(KvLost())
                case Wakeup():
                    events[number].append(Tick())

    def _close_workers(self, error: NotReadyError) -> None:
        for group in self._groups.values():
            group.close(error)

    def _route(self, new: NewJob, events: Events, now_s: float) -> None:
        """Pass a new job on to its group, unless it is refused or has none so far."""
        routed = self._router.submit(new.submit, now_s, new.resumed)
        if isinstance(routed, Reject):
            self._gateways.reject(routed, now_s)
        elif routed is not None:
            events[routed.group].append(routed.submit)

    def _execute(
        self, group: WorkerGroup, commands: Iterable[Emit | End | Reject | Withdrawn], now_s: float
    ) -> list[MovingJob]:
        """Pass a group's commands for clients on to the gateways. Returns the jobs that left the group."""
        withdrawn: list[MovingJob] = []
        for command in commands:
            match command:
                case Emit():
                    self._gateways.emit(command, group.logprob(command.plan_number, command.job_id))
                case End():
                    self._gateways.end(command, now_s, group.failure(command.job_id))
                case Reject():
                    self._gateways.reject(command, now_s)
                case Withdrawn(job):
                    withdrawn.append(job)
        return withdrawn
