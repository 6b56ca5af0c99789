"""The owner of the scheduler's state: one task that takes all events since the last turn, passes them to the machines
of the worker groups, and carries out the commands they return.

Handlers and links post what they receive to the inbox and write whatever is in their peer's outbox; only this task
changes a machine or the job store. A turn contains no await, so a link that breaks and comes back is always seen in
that order. The clock is read once per turn.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from services.domain.errors import NotReadyError, PeerMismatchError
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.server_status import IterationTokens, ServerCounters, ServerStatus
from services.domain.submission import ServingLimits
from services.domain.worker_facts import WorkerFacts
from services.runtime.inbox import Inbox, Wakeup
from services.runtime.recording.recorder import Recorder
from services.scheduler.gateways import Gateways
from services.scheduler.job_store import JobStore
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Emit,
    End,
    Event,
    KvConnected,
    KvLost,
    Reject,
    Tick,
)
from services.scheduler.scheduler_inbox import (
    Cancelled,
    GatewayJoined,
    GatewayLeft,
    Inbound,
    KvClosed,
    KvOpened,
    KvSaid,
    Submitted,
    WorkerArrived,
    WorkerLeft,
    WorkerSaid,
)
from services.scheduler.worker_group import KvLine, ServedSetup, WorkerGroup, check_agrees

_log = logging.getLogger(__name__)

MOST_INBOX = 20_000
"""Submissions and cancels beyond it wait at their streams; results and residency never do."""
LAST_WORDS_LIMIT_S = 1.0
GROUP_COUNT = 1


class SchedulerDriver:
    """Runs the machines. `on_ready` is called whenever it changes whether jobs can run; `recorder` sees every turn.
    Must be created on its event loop.
    """

    def __init__(
        self, served: ServedSetup, kv: KvLine, on_ready: Callable[[bool], None], recorder: Recorder | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._served = served
        self._on_ready = on_ready
        self._gateways = Gateways(served.vocabulary_size)
        self._groups = [
            WorkerGroup(number, served, kv, self._gateways.jobs.work, recorder) for number in range(GROUP_COUNT)
        ]
        self.inbox: Inbox[Inbound] = Inbox(MOST_INBOX)
        """Where handlers and links post what they receive."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._was_ready = False
        self._started_s = self._clock()

    @property
    def jobs(self) -> JobStore:
        """Where gateway streams find new output."""
        return self._gateways.jobs

    @property
    def limits(self) -> ServingLimits:
        """Limits that a job must meet: the strictest of all groups that have had a worker."""
        known = [limits for group in self._groups if (limits := group.limits).ready]
        if not known:
            return ServingLimits(False, 0, 0)
        return ServingLimits(
            True, min(one.max_model_len for one in known), min(one.device_pool_tokens for one in known)
        )

    def check_gateway(self, model_fingerprint: str) -> None:
        """Raises PeerMismatchError for a gateway that serves a different model."""
        check_agrees("model_fingerprint", model_fingerprint, self._served.model_fingerprint)

    def check_worker(self, facts: WorkerFacts) -> None:
        """Raises PeerMismatchError for an incompatible worker, SupersededError for an old epoch."""
        if not 0 <= facts.group < len(self._groups):
            raise PeerMismatchError("group", f"is {facts.group}, but must be less than {len(self._groups)}")
        self._groups[facts.group].check_worker(facts)

    def status(self) -> ServerStatus:
        """A snapshot of the server. O(jobs)."""
        return ServerStatus(
            model=self._served.model_name,
            policy=self._served.config.policy.value,
            kv_policy=next((group.kv_policy for group in self._groups if group.kv_policy), ""),
            groups=tuple(group.status() for group in self._groups),
            counters=self._counters(),
            uptime_s=self._clock() - self._started_s,
            max_queued_jobs=self._served.config.max_queued_jobs,
            rejections=self._rejections(),
            iteration_tokens=self._iteration_tokens(),
        )

    def _counters(self) -> ServerCounters:
        """Totals over all groups."""
        machines = [group.machine.counters for group in self._groups]
        workers = [group.worker_counters.total() for group in self._groups]
        return ServerCounters(
            preemptions=sum(one.preemptions for one in machines),
            promotions=sum(one.promotions for one in machines),
            demotions=sum(one.demotions for one in machines),
            iterations=sum(one.iterations for one in machines),
            offloaded_bytes=sum(one.offloaded_bytes for one in workers),
            uploaded_bytes=sum(one.uploaded_bytes for one in workers),
            recomputed_tokens=sum(one.recomputed_tokens for one in machines),
            stall_s=sum(one.stall_s for one in workers),
            busy_s=sum(one.busy_s for one in workers),
            plan_wait_s=sum(one.plan_wait_s for one in workers),
            prompt_tokens=sum(one.prompt_tokens for one in machines),
            generation_tokens=sum(one.generation_tokens for one in machines),
            jobs_admitted=sum(one.jobs_admitted for one in machines),
            jobs_finished=sum(one.jobs_finished for one in machines),
        )

    def _rejections(self) -> dict[str, int]:
        by_reason: dict[str, int] = {}
        for group in self._groups:
            for reason, count in group.machine.counters.rejections.items():
                by_reason[reason] = by_reason.get(reason, 0) + count
        return by_reason

    def _iteration_tokens(self) -> IterationTokens:
        each = [group.machine.counters.iteration_tokens for group in self._groups]
        counts = tuple(sum(column) for column in zip(*(one.counts for one in each), strict=True))
        return IterationTokens(counts=counts, sum=sum(one.sum for one in each))

    async def run(self) -> None:
        """Takes turns forever; it returns only because of a bug."""
        while True:
            self._turn(await self.inbox.take())

    async def drain(self, limit_s: float) -> None:
        """Stops admitting jobs, gives the running ones `limit_s` seconds to end, aborts the rest and notifies their
        gateways.
        """
        self._gateways.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), limit_s)
        left = sum(len(group.machine.jobs) for group in self._groups)
        if left:
            _log.warning("aborting %d jobs that did not end within %g s", left, limit_s)
            aborts = [[Cancel(job_id, EndReason.ABORT) for job_id in group.machine.jobs] for group in self._groups]
            self._decide(aborts, self._clock())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gateways.flushed(), LAST_WORDS_LIMIT_S)
        goodbye = NotReadyError("the scheduler is shutting down")
        self._gateways.close_all(goodbye)
        for group in self._groups:
            group.close(goodbye)

    def _turn(self, items: Iterable[Inbound]) -> None:
        now_s = self._clock()
        events: list[list[Event]] = [[] for _ in self._groups]
        for item in (*self._gateways.take_deferred(), *items):
            self._hear(item, events, now_s)
        for cancel in self._gateways.expire(now_s):
            events[self._group_of(cancel.job_id).number].append(cancel)
        self._decide(events, now_s)
        if self._gateways.can_retry(self._knows):
            self.inbox.post(Wakeup())

    def _decide(self, events: Sequence[Sequence[Event]], now_s: float) -> None:
        """Ask each group's machine, and carry out its commands."""
        for group in self._groups:
            self._execute(group, group.decide(events[group.number], now_s), now_s)
            group.end_turn()
        if any(group.machine.jobs for group in self._groups):
            self._is_idle.clear()
        else:
            self._is_idle.set()
        is_ready = any(group.machine.ready() for group in self._groups)
        if is_ready is not self._was_ready:
            self._was_ready = is_ready
            self._on_ready(is_ready)
        self._set_timer()

    def _set_timer(self) -> None:
        """Wake up when a machine or the job store next has something due."""
        wanted_s = (*(group.wake_s for group in self._groups), self.jobs.due_s())
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
        """Whether some group has not released this id yet."""
        return any(group.machine.knows(job_id) for group in self._groups)

    def _group_of(self, job_id: JobId) -> WorkerGroup:
        """The group that has the job, or any group if none has."""
        return next((group for group in self._groups if group.machine.knows(job_id)), self._groups[0])

    def _group_for_new_job(self) -> WorkerGroup:
        return self._groups[0]

    def _hear(self, item: Inbound, events: Sequence[list[Event]], now_s: float) -> None:
        """Translate an inbox item into events of the machines."""
        event: Event | None = None
        group = self._groups[0]
        match item:
            case WorkerSaid(stream, result):
                group = self._groups[stream.group]
                event = group.worker_said(stream, result)
            case Submitted():
                event = self._gateways.submit(item, self._knows(item.submission.job_id), now_s)
                group = self._group_for_new_job()
            case Cancelled():
                event = self._gateways.cancel(item)
                group = self._group_of(item.job_id)
            case GatewayJoined(stream):
                self._gateways.join(stream, now_s)
                # The limits may have changed since the welcome was written.
                stream.tell_limits(self.limits)
            case GatewayLeft(stream):
                self._gateways.leave(stream, now_s)
            case WorkerArrived(stream, facts):
                group = self._groups[stream.group]
                event = group.worker_arrived(stream, facts)
                if event is not None:
                    self._gateways.tell_limits(self.limits)
            case WorkerLeft(stream):
                group = self._groups[stream.group]
                event = group.worker_left(stream)
            case _:
                self._hear_of_all(item, events)
        if event is not None:
            events[group.number].append(event)

    def _hear_of_all(self, item: KvOpened | KvClosed | KvSaid | Wakeup, events: Sequence[list[Event]]) -> None:
        """Translate an inbox item that concerns every group."""
        for group, own in zip(self._groups, events, strict=True):
            match item:
                case KvSaid(epoch, items):
                    own += group.kv_said(epoch, items)
                case KvOpened():
                    own.append(KvConnected())
                case KvClosed():
                    group.forget_pools()
                    own.append(KvLost())
                case Wakeup():
                    own.append(Tick())

    def _execute(self, group: WorkerGroup, commands: Iterable[Emit | End | Reject], now_s: float) -> None:
        """Pass a group's commands for clients on to the gateways."""
        for command in commands:
            match command:
                case Emit():
                    self._gateways.emit(command, group.logprob(command.plan_number, command.job_id))
                case End():
                    self._gateways.end(command, now_s)
                case Reject():
                    self._gateways.reject(command)
