"""The owner of the scheduler's state: one task that takes everything that happened since the last turn, asks the
machine what follows, and hands its commands out.

Handlers and links put what they hear into the inbox and write what they find in their peer's outbox; nobody but this
task changes the machine or the book. A turn has no await in it, so that a link that broke and came back is always seen
in this order. Time is read once a turn.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from services.domain.errors import NotReadyError, PeerMismatchError, SupersededError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import SchedulerToKv
from services.domain.server_status import NO_POOLS, GroupStatus, PoolStatus, PoolUsage, ServerCounters, ServerStatus
from services.domain.submission import ServingLimits
from services.domain.worker_facts import WorkerFacts
from services.runtime.recording.recorder import Recorder
from services.scheduler.gateways import RETRY_S, Gateways
from services.scheduler.job_store import JobStore
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Command,
    DropWorker,
    Emit,
    End,
    Event,
    FromKv,
    KvConnected,
    KvLost,
    Reject,
    SendPlan,
    Tick,
    ToKv,
    WakeAt,
    WorkerJoined,
    WorkerLost,
)
from services.scheduler.outgoing_streams import WorkerStream
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_inbox import (
    Cancelled,
    GatewayJoined,
    GatewayLeft,
    Inbound,
    KvClosed,
    KvOpened,
    KvSaid,
    Nudge,
    Submitted,
    WorkerArrived,
    WorkerLeft,
    WorkerSaid,
)
from services.scheduler.worker_group import CountersOverEpochs

_log = logging.getLogger(__name__)

MOST_INBOX = 20_000
"""Submissions and cancels beyond it wait at their streams; results and residency never do."""
LAST_WORDS_LIMIT_S = 1.0
STRICT = False
"""A worker that breaks the protocol is dropped, and the machine goes on."""


class KvLine(Protocol):
    """The way to the KV manager. What is said while it is down is dropped."""

    def send(self, epoch: Epoch, messages: Sequence[SchedulerToKv]) -> None:
        """One turn's messages. Does not wait."""


@dataclass(frozen=True, slots=True)
class ServedSetup:
    """What the scheduler serves, and what its peers must agree to."""

    model_name: str
    model_fingerprint: str
    vocabulary_size: int
    max_model_len: int
    block_size: int
    config: SchedulerConfig


class SchedulerDriver:
    """Runs the machine. `on_ready` is called with every change of whether jobs can run, `recorder` sees every turn.
    Made on its event loop.
    """

    def __init__(
        self, served: ServedSetup, kv: KvLine, on_ready: Callable[[bool], None], recorder: Recorder | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._served = served
        self._kv = kv
        self._on_ready = on_ready
        self._machine = Scheduler(served.config, strict=STRICT)
        self._handle = self._machine.handle if recorder is None else recorder.watching(self._machine.handle)
        self._gateways = Gateways(served.vocabulary_size)
        self._inbox: list[Inbound] = []
        self._something = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._wake_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._worker: WorkerStream | None = None
        self._facts: WorkerFacts | None = None
        self._newest_epoch = Epoch(0)
        self._lives = CountersOverEpochs()
        self._pools: PoolStatus | None = None
        self._swapped_out: set[JobId] = set()
        self._logprobs: dict[PlanNumber, Mapping[JobId, TokenLogprob]] = {}
        self._was_ready = False
        self._started_s = self._clock()

    @property
    def book(self) -> JobStore:
        """Where the streams of gateways find what is new."""
        return self._gateways.book

    @property
    def limits(self) -> ServingLimits:
        """What a job may be."""
        if self._facts is None:
            return ServingLimits(False, 0, 0)
        return ServingLimits(True, self._facts.max_model_len, self._facts.device_blocks * self._facts.block_size)

    def post(self, item: Inbound) -> None:
        """Something happened."""
        self._inbox.append(item)
        self._something.set()

    async def put(self, item: Inbound) -> None:
        """The same for what a gateway wants: waits while the inbox is full."""
        while len(self._inbox) >= MOST_INBOX:
            self._has_room.clear()
            await self._has_room.wait()
        self.post(item)

    def check_gateway(self, model_fingerprint: str) -> None:
        """Raises PeerMismatchError for a gateway with another model."""
        self._check("model_fingerprint", model_fingerprint, self._served.model_fingerprint)

    def check_worker(self, facts: WorkerFacts) -> None:
        """Raises PeerMismatchError for a worker that does not fit, SupersededError for an earlier life of it."""
        self._check("model_fingerprint", facts.model_fingerprint, self._served.model_fingerprint)
        self._check("block_size", facts.block_size, self._served.block_size)
        self._check("group", facts.group, 0)
        if not 0 < facts.max_model_len <= self._served.max_model_len:
            self._check("max_model_len", facts.max_model_len, self._served.max_model_len)
        if facts.device_blocks < 1:
            raise PeerMismatchError("device_blocks", "a worker needs at least one")
        if facts.epoch <= self._newest_epoch:
            raise SupersededError(f"worker epoch {facts.epoch} is not newer than {self._newest_epoch}")

    @staticmethod
    def _check(field: str, theirs: object, ours: object) -> None:
        if theirs != ours:
            raise PeerMismatchError(field, f"is {theirs!r}, the scheduler's is {ours!r}")

    def status(self) -> ServerStatus:
        """The state of the server. O(jobs)."""
        counters, worker = self._machine.counters, self._lives.total()
        return ServerStatus(
            model=self._served.model_name,
            policy=self._served.config.policy.value,
            kv_policy="" if self._pools is None else self._pools.kv_policy,
            groups=(self._group_status(),),
            counters=ServerCounters(
                preemptions=counters.preemptions,
                promotions=counters.promotions,
                demotions=counters.demotions,
                iterations=counters.iterations,
                offloaded_bytes=worker.offloaded_bytes,
                uploaded_bytes=worker.uploaded_bytes,
                recomputed_tokens=counters.recomputed_tokens,
                stall_s=worker.stall_s,
                busy_s=worker.busy_s,
                plan_wait_s=worker.plan_wait_s,
                prompt_tokens=counters.prompt_tokens,
                generation_tokens=counters.generation_tokens,
                jobs_admitted=counters.jobs_admitted,
                jobs_finished=counters.jobs_finished,
            ),
            uptime_s=self._clock() - self._started_s,
            max_queued_jobs=self._served.config.max_queued_jobs,
            rejections=dict(counters.rejections),
            iteration_tokens=counters.iteration_tokens,
        )

    def _group_status(self) -> GroupStatus:
        """Pools are free where the KV manager has not said otherwise; without a worker there are none."""
        facts = None if self._worker is None else self._facts
        pools = NO_POOLS
        if facts is not None:
            free = self._pools or PoolStatus(facts.device_blocks, facts.host_blocks, "")
            pools = PoolUsage(facts.device_blocks, free.device_blocks_free, facts.host_blocks, free.host_blocks_free)
        return GroupStatus(
            group=0,
            ready=self._machine.linked,
            levels=self._machine.levels(self._swapped_out),
            pools=pools,
            block_size=0 if facts is None else facts.block_size,
            device="" if facts is None else facts.device,
            worker_joins=self._machine.counters.worker_joins,
        )

    async def run(self) -> None:
        """Takes turns for ever. What ends it is a bug."""
        while True:
            await self._something.wait()
            self._something.clear()
            items, self._inbox = self._inbox, []
            self._has_room.set()
            self._turn(items)

    async def drain(self, limit_s: float) -> None:
        """Admits nobody any more, lets the jobs end for so long, aborts the rest and tells their gateways."""
        self._gateways.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), limit_s)
        left = [Cancel(job_id, EndReason.ABORT) for job_id in self._machine.jobs]
        if left:
            _log.warning("aborting %d jobs that did not end within %g s", len(left), limit_s)
            self._decide(left, self._clock())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gateways.flushed(), LAST_WORDS_LIMIT_S)
        goodbye = NotReadyError("the scheduler is shutting down", RETRY_S)
        self._gateways.close_all(goodbye)
        if self._worker is not None:
            self._worker.close(goodbye)

    def _turn(self, items: Iterable[Inbound]) -> None:
        now_s = self._clock()
        events: list[Event] = []
        for item in (*self._gateways.take_deferred(), *items):
            event = self._heard(item, now_s)
            if event is not None:
                events.append(event)
            elif isinstance(item, KvSaid):
                events += self._kv_said(item)
        events += self._gateways.expire(now_s)
        self._decide(events, now_s)
        if self._gateways.can_retry(self._machine.knows):
            self.post(Nudge())

    def _decide(self, events: Sequence[Event], now_s: float) -> None:
        """Ask the machine, and do as it says."""
        if self._wake_s is not None and self._wake_s <= now_s:
            self._wake_s = None
        self._execute(self._handle(events, now_s), now_s)
        self._logprobs.clear()
        if self._machine.jobs:
            self._is_idle.clear()
        else:
            self._is_idle.set()
        if self._machine.ready() is not self._was_ready:
            self._was_ready = self._machine.ready()
            self._on_ready(self._was_ready)
        self._set_timer()

    def _set_timer(self) -> None:
        """Be nudged when the machine or the book wants to be looked at."""
        times = [time_s for time_s in (self._wake_s, self.book.due_s()) if time_s is not None]
        next_s = min(times, default=None)
        if next_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = None if next_s is None else self._loop.call_at(next_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_s = None
        self.post(Nudge())

    def _heard(self, item: Inbound, now_s: float) -> Event | None:
        """What something means to the machine."""
        match item:
            case WorkerSaid(peer, result):
                if peer is not self._worker:
                    return None
                self._lives.counted(result.counters)
                self._logprobs[result.result.plan_number] = result.logprobs
                return result.result
            case Submitted():
                is_leaving = self._machine.knows(item.submission.job_id)
                return self._gateways.submit(item, is_leaving, now_s)
            case Cancelled():
                return self._gateways.cancel(item)
            case GatewayJoined(peer):
                self._gateways.join(peer, now_s)
                # They may have changed since its welcome was written.
                peer.tell_limits(self.limits)
            case GatewayLeft(peer):
                self._gateways.leave(peer, now_s)
            case WorkerArrived(peer, facts):
                return self._worker_arrived(peer, facts)
            case WorkerLeft(peer):
                if peer is self._worker:
                    self._worker = None
                    self._forget_pools()
                    _log.warning("worker of epoch %d lost", peer.epoch)
                    return WorkerLost(peer.epoch)
            case KvOpened():
                return KvConnected()
            case KvClosed():
                self._forget_pools()
                return KvLost()
            case Nudge():
                return Tick()
            case KvSaid():
                pass
        return None

    def _kv_said(self, item: KvSaid) -> list[Event]:
        """Residency is the machine's, pools are for operators."""
        events: list[Event] = []
        for message in item.items:
            if not isinstance(message, PoolStatus):
                events.append(FromKv(item.epoch, message))
            elif item.epoch == self._newest_epoch and self._worker is not None:
                self._pools = message
                self._swapped_out.update(message.swapped_out_job_ids)
                self._swapped_out.difference_update(message.swapped_in_job_ids)
        return events

    def _worker_arrived(self, peer: WorkerStream, facts: WorkerFacts) -> Event | None:
        if facts.epoch <= self._newest_epoch:
            peer.close(SupersededError(f"worker epoch {facts.epoch} is not newer than {self._newest_epoch}"))
            return None
        if self._worker is not None:
            self._worker.close(SupersededError(f"a worker of the newer epoch {facts.epoch} took over"))
        self._worker, self._facts, self._newest_epoch = peer, facts, facts.epoch
        self._lives.born()
        self._forget_pools()
        self._gateways.tell_limits(self.limits)
        _log.info("worker of epoch %d joined on %s", facts.epoch, facts.device)
        return WorkerJoined(facts.epoch, facts.device_blocks * facts.block_size, facts.max_model_len, facts.profile)

    def _forget_pools(self) -> None:
        """The tables they counted are gone; the policy's name stays what it was."""
        self._swapped_out.clear()
        if self._pools is not None and self._facts is not None:
            self._pools = PoolStatus(self._facts.device_blocks, self._facts.host_blocks, self._pools.kv_policy)

    def _execute(self, commands: Iterable[Command], now_s: float) -> None:
        """Hand out a turn's commands; its messages to the KV manager go as one batch."""
        to_kv: list[SchedulerToKv] = []
        kv_epoch = Epoch(0)
        for command in commands:
            match command:
                case Emit():
                    self._gateways.emit(command, self._logprobs.get(command.plan_number, {}).get(command.job_id))
                case ToKv(epoch, message):
                    if epoch != kv_epoch and to_kv:
                        self._kv.send(kv_epoch, to_kv)
                        to_kv = []
                    kv_epoch = epoch
                    to_kv.append(message)
                case SendPlan():
                    self._send_plan(command)
                case End():
                    self._gateways.end(command, now_s)
                case Reject():
                    self._gateways.reject(command)
                case DropWorker():
                    self._drop_worker(command)
                case WakeAt(time_s):
                    self._wake_s = time_s
        if to_kv:
            self._kv.send(kv_epoch, to_kv)

    def _send_plan(self, command: SendPlan) -> None:
        assert self._worker is not None, "plans are for the worker that joined"
        assert self._worker.epoch == command.epoch
        limits = dict(command.cut_after_s)
        work = [self.book.work(entry, limits.get(entry.job_id)) for entry in command.entries]
        self._worker.send_plan(command.plan_number, work)

    def _drop_worker(self, command: DropWorker) -> None:
        _log.warning("dropping the worker of epoch %d: %s", command.epoch, command.reason)
        self._forget_pools()
        if self._worker is not None and self._worker.epoch == command.epoch:
            self._worker.close(NotReadyError(command.reason, RETRY_S))
            self._worker = None
