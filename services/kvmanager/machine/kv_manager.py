"""The KV manager as a state machine: `handle(events, now_s) -> commands`, all events of a turn at once, one decision
at its end.

Theory of operation. The scheduler says which jobs there are, in which order they would run, and what it plans; the
worker says which pools it has and what became of its commands. From this the machine decides where each job's KV is.
It alone issues block ids, and it never waits for a plan, nor lets a plan wait for it (PROTOCOL 7, 8).

Everything belongs to one life of the worker, its epoch. The ledger of an epoch is made by Jobs(epoch) of the
scheduler and opened by WorkerPools of the same epoch from every stage, whichever comes first; only then is anything
decided (PROTOCOL 20). Epochs are ordered: what is newer than the other side's is kept until the other side follows,
what is older is dropped. A worker whose tables nobody can vouch for (the scheduler's stream broke) is told to begin a
new epoch.

What the scheduler or the worker may not do raises ProtocolError; after one the machine is of no use any more, and its
driver starts a new one.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Finished,
    Jobs,
    Order,
    OrderChange,
    Planned,
    Refuse,
    Release,
    SchedulerToKv,
    WorkerPools,
    WorkerToKv,
)
from services.domain.server_status import PoolUsage
from services.kvmanager.machine import moves
from services.kvmanager.machine.decisions import decide
from services.kvmanager.machine.kv_job import ASKED, DEVICE, KvJob, KvState
from services.kvmanager.machine.kv_manager_events import (
    Command,
    EndWorker,
    Event,
    FromScheduler,
    FromWorker,
    SchedulerConnected,
    SchedulerLost,
    StageLost,
    Swaps,
)
from services.kvmanager.machine.ledger import Ledger
from services.kvmanager.policies.kv_config import KvConfig

NO_WORKER = Epoch(0)


class KvManager:
    """Where each job's KV is. `knobs` fixes the policy."""

    def __init__(self, knobs: KvConfig) -> None:
        self.knobs = knobs
        self._scheduler_epoch: Epoch | None = None
        """Of the last Jobs on this stream."""
        self._worker_epoch = NO_WORKER
        """The newest that a worker named; its stages are in `_stages` while it lives."""
        self._stages: dict[int, WorkerPools] = {}
        self._ledger: Ledger | None = None

    def handle(self, events: Sequence[Event], now_s: float) -> list[Command]:
        """Take the events of a turn, in order, and say what to do. Raises ProtocolError when a peer broke the
        protocol.
        """
        commands: list[Command] = []
        for event in events:
            if isinstance(event, FromScheduler):
                self._from_scheduler(event, now_s)
            elif isinstance(event, FromWorker):
                self._from_worker(event)
            elif isinstance(event, SchedulerLost):
                commands.extend(self._scheduler_lost())
            elif isinstance(event, StageLost):
                self._worker_lost(event.epoch)
            else:
                assert isinstance(event, SchedulerConnected)
        ledger = self._ledger
        if ledger is not None and ledger.is_open:
            decide(ledger, self.knobs, now_s)
            commands.extend(ledger.commands)
            ledger.commands.clear()
        return commands

    # --- lives -------------------------------------------------------------------------------------------------------

    def _from_scheduler(self, event: FromScheduler, now_s: float) -> None:
        message = event.message
        if type(message) is Jobs:
            self._jobs(message, now_s)
        elif event.epoch == self._scheduler_epoch and self._ledger is not None:
            take = HANDLERS[type(message)]
            take(self._ledger, self.knobs, message, now_s)

    def _jobs(self, message: Jobs, now_s: float) -> None:
        """All jobs anew. Older than what the scheduler said before: a bug; older than the worker: dropped, it will
        follow.
        """
        if self._scheduler_epoch is not None and message.epoch <= self._scheduler_epoch:
            raise ProtocolError(f"Jobs of worker epoch {message.epoch} after those of {self._scheduler_epoch}")
        self._scheduler_epoch = message.epoch
        if message.epoch < self._worker_epoch or (message.epoch == self._worker_epoch and not self._stages):
            self._ledger = None
            return
        if message.max_batch < 1:
            raise ProtocolError("Jobs says a largest batch of no job")
        self._ledger = Ledger(message.epoch, message.max_batch, message.quanta_s, message.starvation_limit_s)
        for job in message.jobs:
            _add(self._ledger, job, now_s)
        _reorder(self._ledger, message.order, now_s)
        self._open()

    def _from_worker(self, event: FromWorker) -> None:
        message: WorkerToKv = event.message
        if isinstance(message, WorkerPools):
            self._pools(message)
        elif event.epoch == self._worker_epoch and self._ledger is not None and self._ledger.is_open:
            moves.worker_said(self._ledger, message, self.knobs.policy.keeps_kv)

    def _pools(self, pools: WorkerPools) -> None:
        """A stage joins. A newer epoch ends the one before; an older one, or one that is over, is dropped."""
        if pools.epoch < self._worker_epoch or (pools.epoch == self._worker_epoch and not self._stages):
            return
        if pools.epoch > self._worker_epoch:
            self._worker_epoch = pools.epoch
            self._stages = {}
            if self._scheduler_epoch is not None and self._scheduler_epoch < pools.epoch:
                self._ledger = None
        if pools.stage in self._stages:
            raise ProtocolError(f"stage {pools.stage} joined epoch {pools.epoch} twice")
        if any(other.stage_count != pools.stage_count for other in self._stages.values()):
            raise ProtocolError(f"the stages of epoch {pools.epoch} do not agree how many they are")
        self._stages[pools.stage] = pools
        self._open()

    def _open(self) -> None:
        """Both sides name the same epoch: begin. The smallest pool of all stages counts, a block being one on every
        stage.
        """
        ledger = self._ledger
        if ledger is None or ledger.is_open or ledger.epoch != self._worker_epoch or not self._stages:
            return
        stages = list(self._stages.values())
        if len(stages) == stages[0].stage_count:
            device_blocks = min(pools.device_block_count for pools in stages)
            host_blocks = min(pools.host_block_count for pools in stages)
            ledger.open(stages[0].block_size, device_blocks, host_blocks, stages[0].stage_count)

    def _worker_lost(self, epoch: Epoch) -> None:
        """All stages of an epoch end together. Jobs that the scheduler said for a newer epoch stay."""
        if epoch == self._worker_epoch:
            self._stages = {}
            if self._ledger is not None and self._ledger.epoch <= epoch:
                self._ledger = None

    def _scheduler_lost(self) -> list[Command]:
        """What the worker holds can't be vouched for any more, if anything was ever given to it: it begins anew."""
        commands: list[Command] = []
        if self._ledger is not None and self._ledger.is_open:
            commands.append(EndWorker(self._worker_epoch))
            self._stages = {}
        self._scheduler_epoch = None
        self._ledger = None
        return commands

    # --- for operators, tests and explorers --------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Both sides name the same epoch."""
        return self._ledger is not None and self._ledger.is_open

    @property
    def epoch(self) -> Epoch:
        """The newest epoch that a worker named; 0 before any."""
        return self._worker_epoch

    def state_of(self, job_id: JobId) -> KvState | None:
        """A job's state, None for an unknown one."""
        known = None if self._ledger is None else self._ledger.jobs.get(job_id)
        return None if known is None else known.state

    def pool_usage(self) -> PoolUsage | None:
        """State of the pools; None unless ready."""
        ledger = self._ledger
        if ledger is None or not ledger.is_open:
            return None
        device, host = ledger.device, ledger.host
        return PoolUsage(device.count, device.free_count, host.count, host.free_count)

    @property
    def has_swaps(self) -> bool:
        """Whether `take_swaps` has anything to say."""
        return self._ledger is not None and bool(self._ledger.swap_changes)

    def take_swaps(self) -> Swaps:
        """Which jobs were swapped out and back since this was last called."""
        if self._ledger is None:
            return Swaps((), ())
        changes, self._ledger.swap_changes = self._ledger.swap_changes, {}
        out = tuple(job_id for job_id, is_out in changes.items() if is_out)
        return Swaps(out, tuple(job_id for job_id, is_out in changes.items() if not is_out))

    def status(self) -> dict[str, int]:
        """Jobs by state."""
        counts = {state.value: 0 for state in KvState}
        if self._ledger is not None:
            for job in (*self._ledger.jobs.values(), *self._ledger.zombies.values()):
                counts[job.state.value] += 1
        return counts

    def check(self) -> None:
        """Assert every invariant; slow, for tests."""
        if self._ledger is not None:
            self._ledger.check()

    def state_key(self, now_s: float) -> Hashable:
        """All that decides what the machine does from now on, times being relative to now."""
        ledger = None if self._ledger is None else self._ledger.state_key(now_s)
        return (self._scheduler_epoch, self._worker_epoch, tuple(sorted(self._stages)), ledger)


# --- what the scheduler says -----------------------------------------------------------------------------------------


def _add(ledger: Ledger, arrived: ArrivedJob, now_s: float) -> None:
    ledger.add(KvJob(arrived.job_id, arrived.known_tokens, arrived.most_tokens, now_s))


def _known(ledger: Ledger, job_id: JobId) -> KvJob:
    job = ledger.jobs.get(job_id)
    if job is None:
        raise ProtocolError(f"the scheduler names job {job_id}, which is not known here")
    return job


def _reorder(ledger: Ledger, changes: Sequence[OrderChange], now_s: float) -> None:
    for job_id, rank in changes:
        ledger.rank(_known(ledger, job_id), rank, now_s)


def _arrive(ledger: Ledger, knobs: KvConfig, message: Arrive, now_s: float) -> None:
    _add(ledger, message.job, now_s)


def _order(ledger: Ledger, knobs: KvConfig, message: Order, now_s: float) -> None:
    _reorder(ledger, message.changes, now_s)


def _planned(ledger: Ledger, knobs: KvConfig, message: Planned, now_s: float) -> None:
    """Entries move `planned` on. One that starts below `finished` says that the tokens from there on are void."""
    jobs, block_size = ledger.jobs, ledger.block_size
    for job_id, from_token, to_token in message.entries:
        job = jobs.get(job_id) or _known(ledger, job_id)
        if job.state is not DEVICE and job.state is not ASKED:
            raise job.broken(f"plan {message.plan_number} names it, but it is not resident")
        if to_token > job.announced_blocks * block_size:
            raise job.broken(f"plan {message.plan_number} goes to {to_token}, beyond its capacity")
        job.planned = to_token
        if from_token < job.finished:
            job.finished = from_token
        job.plans += 1
    if message.plan_number in ledger.plans:
        raise ProtocolError(f"plan {message.plan_number} was made twice")
    ledger.plans[message.plan_number] = message.entries
    for job in ledger.brought_in.values():
        if job.state is DEVICE and not job.plans and job.passed_over < knobs.protected_plans:
            job.passed_over += 1


def _finished(ledger: Ledger, knobs: KvConfig, message: Finished, now_s: float) -> None:
    entries = ledger.plans.pop(message.plan_number, None)
    if entries is None:
        raise ProtocolError(f"plan {message.plan_number} finished, but is not under way")
    jobs, cut = ledger.jobs, message.cut_job_ids
    for job_id, from_token, to_token in entries:
        job = jobs[job_id]
        if job_id in cut:
            job.planned = from_token
        elif to_token > job.finished:
            job.finished = to_token
        job.plans -= 1
        job.waiting_since_s = now_s
        if job.brought_in:
            moves.unprotect(ledger, job)


def _ack(ledger: Ledger, knobs: KvConfig, message: Ack, now_s: float) -> None:
    moves.acknowledged(ledger, _known(ledger, message.job_id), knobs.policy.keeps_kv)


def _refuse(ledger: Ledger, knobs: KvConfig, message: Refuse, now_s: float) -> None:
    moves.refused(ledger, _known(ledger, message.job_id))


def _release(ledger: Ledger, knobs: KvConfig, message: Release, now_s: float) -> None:
    """A job that ended just before Jobs was sent is not in it, and is released after it: nothing is known of it, and
    nothing is to do.
    """
    job = ledger.jobs.get(message.job_id)
    if job is not None:
        moves.release(ledger, job)


HANDLERS: dict[type[SchedulerToKv], Callable[[Ledger, KvConfig, Any, float], None]] = {
    Arrive: _arrive,
    Order: _order,
    Planned: _planned,
    Finished: _finished,
    Ack: _ack,
    Refuse: _refuse,
    Release: _release,
}
