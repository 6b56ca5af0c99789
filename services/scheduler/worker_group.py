"""One worker group in the scheduler's service: its machine, its worker's stream, and the usage of its pools.

A group decides for itself and shares nothing with other groups except the gateways and their jobs. So the driver passes
events to the group they belong to and carries out its commands for clients; commands for the group's worker and for
the KV manager never pass through the driver. Called within the driver's turn.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from services.domain.errors import FastServeError, NotReadyError, PeerMismatchError, SupersededError
from services.domain.generation import TokenLogprob
from services.domain.ids import MOST_GROUPS, Epoch, JobId, PlanNumber
from services.domain.iteration import PlanWork, WorkerCounters, WorkerResult
from services.domain.protocol import PlanEntry, SchedulerToKv
from services.domain.server_status import (
    NO_POOLS,
    GroupStatus,
    JobStatus,
    KvLinkItem,
    PoolStatus,
    PoolUsage,
    ServerCounters,
)
from services.domain.worker_facts import WorkerFacts
from services.runtime.recording.recorder import Recorder
from services.scheduler.machine.job_counts import job_statuses
from services.scheduler.machine.kv_news import may_wait
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    DropWorker,
    Emit,
    End,
    Event,
    FromKv,
    RecallPlans,
    Reject,
    SendPlan,
    ToKv,
    WakeAt,
    Withdrawn,
    WorkerJoined,
    WorkerLost,
)
from services.scheduler.outgoing_streams import WorkerStream
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig

_log = logging.getLogger(__name__)

STRICT = False
"""A worker that breaks the protocol is dropped, and the machine continues."""
GROUP_KEPT_S = 60.0
"""A group without worker and jobs is forgotten after this time: what it has learnt serves the next worker."""


class KvLine(Protocol):
    """The link to the KV manager. Messages sent while it is down are dropped."""

    def send(self, group: int, epoch: Epoch, messages: Sequence[SchedulerToKv], may_wait: Callable[[], bool]) -> None:
        """Send the messages of one turn of a group, those that only tell how plans go on perhaps with later ones: for
        long only if `may_wait`. Does not block.
        """


@dataclass(frozen=True, slots=True)
class ServedSetup:
    """What the scheduler serves; its peers must agree with it."""

    model_name: str
    model_fingerprint: str
    vocabulary_size: int
    max_model_len: int
    block_size: int
    config: SchedulerConfig
    most_groups: int = MOST_GROUPS


def check_agrees(field: str, theirs: object, ours: object) -> None:
    """Raises PeerMismatchError if a peer is configured differently."""
    if theirs != ours:
        raise PeerMismatchError(field, f"is {theirs!r}, but the scheduler has {ours!r}")


def check_fits(facts: WorkerFacts, served: ServedSetup) -> None:
    """Raises PeerMismatchError for an incompatible worker."""
    if facts.group >= served.most_groups:
        raise PeerMismatchError("group", f"is {facts.group}, but must be less than {served.most_groups} (--groups)")
    check_agrees("model_fingerprint", facts.model_fingerprint, served.model_fingerprint)
    check_agrees("block_size", facts.block_size, served.block_size)
    if not 0 < facts.max_model_len <= served.max_model_len:
        check_agrees("max_model_len", facts.max_model_len, served.max_model_len)
    if facts.rank_count > 1 and served.config.policy is PolicyName.MLFQ_KILL:
        raise PeerMismatchError(
            "ranks", f"is {facts.rank_count}, but policy mlfq-kill gives up prefills, which only a worker of 1 can"
        )
    if facts.device_blocks < 1:
        raise PeerMismatchError("device_blocks", f"is {facts.device_blocks}, but must be at least 1")


class CountersOverEpochs:
    """Adds up a worker's counters over its epochs; the worker counts from the start of each."""

    def __init__(self) -> None:
        self._before = WorkerCounters()
        self._present = WorkerCounters()

    def begin_epoch(self) -> None:
        """A new epoch begins, which counts from zero."""
        self._before, self._present = self.total(), WorkerCounters()

    def set_present(self, counters: WorkerCounters) -> None:
        """Set the counters of the present epoch."""
        self._present = counters

    def total(self) -> WorkerCounters:
        """The counters of all epochs together."""
        pairs = ((getattr(self._before, one.name), getattr(self._present, one.name)) for one in fields(WorkerCounters))
        return WorkerCounters(*(before + present for before, present in pairs))


HearTurn = Callable[[int, Sequence[Event], Sequence[Command], float], None]
"""Called after every turn of a group's machine: its group, what it was given, what it answered, and the time."""


class WorkerGroup:
    """`work` adds to a plan entry the data that the worker needs; `hear` and `recorder` see every turn."""

    def __init__(
        self,
        number: int,
        machine: Scheduler,
        kv: KvLine,
        work: Callable[[PlanEntry, float | None], PlanWork],
        hear: HearTurn,
        recorder: Recorder | None = None,
    ) -> None:
        self.number = number
        self.machine = machine
        self.worker_counters = CountersOverEpochs()
        self.kv_policy = ""
        """As last reported by the KV manager; empty before."""
        self.wake_s: float | None = None
        """When the machine needs a Tick; None: never."""
        self._kv = kv
        self._work = work
        self._hear = hear
        self.recorder = recorder
        self._told_batch = 0
        self._handle = self.machine.handle if recorder is None else recorder.watching(self.machine.handle)
        self._stream: WorkerStream | None = None
        self._facts: WorkerFacts | None = None
        self._newest_epoch = Epoch(0)
        self.draining = False
        """Its worker was told to end, and still serves."""
        self._is_released = False
        self._kept_s = GROUP_KEPT_S
        self._deserted_s: float | None = None
        """Since when it has had no worker and no job."""
        self._free: PoolStatus | None = None
        self._swapped_out: set[JobId] = set()
        self._to_kv: list[tuple[Epoch, list[SchedulerToKv]]] = []
        self._logprobs: dict[PlanNumber, Mapping[JobId, TokenLogprob]] = {}
        self._failures: dict[JobId, str] = {}

    def status(self) -> GroupStatus:
        """Jobs and pools. Pools count as free until the KV manager reports otherwise, and as absent without a worker.
        O(jobs).
        """
        facts = None if self._stream is None else self._facts
        pools = NO_POOLS
        if facts is not None:
            free = self._free or PoolStatus(facts.device_blocks, facts.host_blocks, "")
            pools = PoolUsage(facts.device_blocks, free.device_blocks_free, facts.host_blocks, free.host_blocks_free)
        return GroupStatus(
            group=self.number,
            ready=self.machine.linked,
            levels=self.machine.levels(self._swapped_out),
            pools=pools,
            block_size=0 if facts is None else facts.block_size,
            device="" if facts is None else facts.device,
            worker_joins=self.machine.counters.worker_joins,
            max_batch=self.machine.batch.jobs,
            counters=self.counters(),
            iteration_tokens=self.machine.counters.iteration_tokens,
            draining=self.draining,
        )

    def first_jobs(self, most: int) -> tuple[JobStatus, ...]:
        """The first `most` jobs by rank. O(jobs)."""
        return job_statuses(self.machine, self.number, self._swapped_out, most)

    def counters(self) -> ServerCounters:
        machine, worker = self.machine.counters, self.worker_counters.total()
        return ServerCounters(
            preemptions=machine.preemptions,
            promotions=machine.promotions,
            demotions=machine.demotions,
            iterations=machine.iterations,
            offloaded_bytes=worker.offloaded_bytes,
            uploaded_bytes=worker.uploaded_bytes,
            recomputed_tokens=machine.recomputed_tokens,
            stall_s=worker.stall_s,
            busy_s=worker.busy_s,
            plan_wait_s=worker.plan_wait_s,
            prompt_tokens=machine.prompt_tokens,
            generation_tokens=machine.generation_tokens,
            jobs_admitted=machine.jobs_admitted,
            jobs_finished=machine.jobs_finished,
            moves=machine.moves,
        )

    # --- the worker --------------------------------------------------------------------------------------------------

    def worker_arrived(self, stream: WorkerStream, facts: WorkerFacts) -> WorkerJoined:
        """A worker said hello that fits and has claimed the group. It may have given up an older stream itself."""
        assert stream.epoch > self._newest_epoch, "epochs are given out in order"
        self.close(SupersededError("a newer stream of the same worker took over"))
        self._stream, self._facts, self._newest_epoch = stream, facts, stream.epoch
        self.draining = self._is_released = False
        self._kept_s = GROUP_KEPT_S
        self.worker_counters.begin_epoch()
        self.forget_pools()
        _log.info("group %d: worker of epoch %d joined on %s", self.number, stream.epoch, facts.device)
        pool_tokens = facts.device_blocks * facts.block_size
        return WorkerJoined(stream.epoch, pool_tokens, facts.max_model_len, facts.profile, facts.stage_count)

    def worker_left(self, stream: WorkerStream) -> Event | None:
        if stream is not self._stream:
            return None
        if self.draining:
            _log.info("group %d: worker of epoch %d has ended", self.number, stream.epoch)
            # Whoever told it to end does not want it back.
            self._kept_s = 0.0
        else:
            _log.warning("group %d: worker of epoch %d lost", self.number, stream.epoch)
        self._no_worker()
        return WorkerLost(stream.epoch)

    def _no_worker(self) -> None:
        self._stream, self.draining = None, False
        self.forget_pools()

    def drains(self, stream: WorkerStream) -> bool:
        """The worker was told to end. False: it is not the group's any more."""
        if stream is not self._stream:
            return False
        _log.info("group %d: worker of epoch %d is about to end", self.number, stream.epoch)
        self.draining = True
        return True

    def release_worker(self) -> None:
        """Let a worker that is about to end go, once no job needs it."""
        if self.draining and not self.machine.jobs and not self._is_released:
            assert self._stream is not None, "who drains is there"
            self._is_released = True
            self._stream.put(None)

    def worker_said(self, stream: WorkerStream, result: WorkerResult) -> Event | None:
        if stream is not self._stream:
            return None
        self.worker_counters.set_present(result.counters)
        self._logprobs[result.result.plan_number] = result.logprobs
        self._failures.update(result.failures)
        return result.result

    def logprob(self, plan_number: PlanNumber, job_id: JobId) -> TokenLogprob | None:
        """The log probability of the job's token from this plan; available until the end of the turn."""
        return self._logprobs.get(plan_number, {}).get(job_id)

    def failure(self, job_id: JobId) -> str | None:
        """Why the worker could not go on with a job that ended in this turn; None: it could."""
        return self._failures.get(job_id)

    def close(self, error: FastServeError) -> None:
        """End the worker's stream; the worker comes back with a new epoch."""
        if self._stream is not None:
            self._stream.close(error)

    def forget_at_s(self, now_s: float) -> float | None:
        """When the group is to be forgotten unless a worker or a job comes; None while it has one."""
        if self._stream is not None or self.machine.jobs:
            self._deserted_s = None
            return None
        if self._deserted_s is None:
            self._deserted_s = now_s
        return self._deserted_s + self._kept_s

    # --- the KV manager ----------------------------------------------------------------------------------------------

    def kv_said(self, epoch: Epoch, items: Sequence[KvLinkItem]) -> list[Event]:
        """Turn messages about residency into events; keep the pool status for operators."""
        events: list[Event] = []
        for item in items:
            if not isinstance(item, PoolStatus):
                events.append(FromKv(epoch, item))
            elif epoch == self._newest_epoch and self._stream is not None:
                self._free, self.kv_policy = item, item.kv_policy
                self._swapped_out.update(item.swapped_out_job_ids)
                self._swapped_out.difference_update(item.swapped_in_job_ids)
        return events

    def forget_pools(self) -> None:
        """The block tables are gone, so forget the pool usage; the KV policy's name is kept."""
        self._swapped_out.clear()
        self._free = None

    # --- turns -------------------------------------------------------------------------------------------------------

    def decide(self, events: Sequence[Event], now_s: float) -> list[Emit | End | Reject | Withdrawn]:
        """A turn of the machine. Plans and timers are handled here; the remaining commands, which are for clients and
        for other groups, are returned. `end_turn` must follow.
        """
        if self.wake_s is not None and self.wake_s <= now_s:
            self.wake_s = None
        left: list[Emit | End | Reject | Withdrawn] = []
        commands = self._handle(events, now_s)
        if self.machine.batch.jobs != self._told_batch:
            self._told_batch = self.machine.batch.jobs
            _log.info("group %d: up to %d jobs in an iteration", self.number, self._told_batch)
        self._hear(self.number, events, commands, now_s)
        for command in commands:
            match command:
                case Emit() | End() | Reject() | Withdrawn():
                    left.append(command)
                case ToKv(epoch, message):
                    if not self._to_kv or self._to_kv[-1][0] != epoch:
                        self._to_kv.append((epoch, []))
                    self._to_kv[-1][1].append(message)
                case SendPlan():
                    self._send_plan(command)
                case RecallPlans():
                    self._to_worker(command.epoch).put(command)
                case DropWorker():
                    self._drop_worker(command)
                case WakeAt(time_s):
                    self.wake_s = time_s
        return left

    def end_turn(self) -> None:
        """Send the KV manager its messages, last of all: nobody waits for them as for tokens and plans. Drop what was
        kept for the commands of this turn.
        """
        for epoch, messages in self._to_kv:
            self._kv.send(self.number, epoch, messages, lambda: may_wait(self.machine))
        self._to_kv.clear()
        self._logprobs.clear()
        self._failures.clear()

    def _send_plan(self, command: SendPlan) -> None:
        limits_s = dict(command.cut_after_s)
        work = [self._work(entry, limits_s.get(entry.job_id)) for entry in command.entries]
        self._to_worker(command.epoch).put((command.plan_number, work))

    def _to_worker(self, epoch: Epoch) -> WorkerStream:
        assert self._stream is not None, "a plan needs a connected worker"
        assert self._stream.epoch == epoch
        return self._stream

    def _drop_worker(self, command: DropWorker) -> None:
        _log.warning("group %d: dropping the worker of epoch %d: %s", self.number, command.epoch, command.reason)
        self.forget_pools()
        if self._stream is not None and self._stream.epoch == command.epoch:
            self._stream.close(NotReadyError(command.reason))
            self._no_worker()
