"""The KV manager as a state machine: `handle(events, now_s) -> commands` takes all events of a turn at once and
decides once, at the end of the turn.

Theory of operation. The scheduler reports its jobs, the order in which they would run, and its plans; the worker
reports its pools and the progress of its commands. From this the machine decides where each job's KV is. It alone
issues block ids. It never waits for a plan, and no plan waits for it (PROTOCOL 7, 8).

All state belongs to one epoch of the worker. The ledger of an epoch is created by the scheduler's
Jobs(epoch) and opened by WorkerPools of the same epoch, in whatever order these arrive; nothing is decided
before then (PROTOCOL 20). Epochs are ordered: a message newer than the other side's epoch is kept until the
other side follows, an older one is dropped. When the scheduler's stream breaks, the worker's tables are void and the
worker has to begin a new epoch.

A breach of the protocol by the scheduler or the worker raises ProtocolError. After that the machine must not be used,
and its driver starts a new one.
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
    Recalled,
    Refuse,
    Release,
    SchedulerToKv,
    WorkerPools,
    WorkerToKv,
)
from services.domain.server_status import PoolUsage
from services.kvmanager.machine import moves
from services.kvmanager.machine.decisions import decide, protected_plans
from services.kvmanager.machine.enst import enst_s
from services.kvmanager.machine.kv_job import ASKED, DEVICE, KvJob, KvState
from services.kvmanager.machine.kv_manager_events import (
    Command,
    EndWorker,
    Event,
    FromScheduler,
    FromWorker,
    KvWorkerLost,
    SchedulerConnected,
    SchedulerLost,
    Swaps,
)
from services.kvmanager.machine.ledger import Ledger
from services.kvmanager.policies.kv_config import KvConfig

NO_WORKER = Epoch(0)


class KvManager:
    """Decides where each job's KV is. `knobs` contains the policy."""

    def __init__(self, knobs: KvConfig) -> None:
        self.knobs = knobs
        self._scheduler_epoch: Epoch | None = None
        """The epoch of the last Jobs on this stream."""
        self._worker_epoch = NO_WORKER
        """The newest epoch of a worker."""
        self._pools: WorkerPools | None = None
        """Its pools, while it lives."""
        self._ledger: Ledger | None = None

    def handle(self, events: Sequence[Event], now_s: float) -> list[Command]:
        """Take the events of a turn, in order. Raises ProtocolError if a peer broke the protocol."""
        commands: list[Command] = []
        for event in events:
            if isinstance(event, FromScheduler):
                self._from_scheduler(event, now_s)
            elif isinstance(event, FromWorker):
                self._from_worker(event)
            elif isinstance(event, SchedulerLost):
                commands.extend(self._scheduler_lost())
            elif isinstance(event, KvWorkerLost):
                self._worker_lost(event.epoch)
            else:
                assert isinstance(event, SchedulerConnected)
        ledger = self._ledger
        if ledger is not None and ledger.is_open:
            decide(ledger, self.knobs, now_s)
            commands.extend(ledger.commands)
            ledger.commands.clear()
        return commands

    # --- epochs ------------------------------------------------------------------------------------------------------

    def _from_scheduler(self, event: FromScheduler, now_s: float) -> None:
        message = event.message
        if type(message) is Jobs:
            self._jobs(message, now_s)
        elif event.epoch == self._scheduler_epoch and self._ledger is not None:
            take = HANDLERS[type(message)]
            take(self._ledger, self.knobs, message, now_s)

    def _jobs(self, message: Jobs, now_s: float) -> None:
        """Replace all jobs. An epoch not newer than in the scheduler's previous Jobs is a breach of the protocol; one
        older than the worker's is dropped, as the scheduler will catch up.
        """
        if self._scheduler_epoch is not None and message.epoch <= self._scheduler_epoch:
            raise ProtocolError(
                f"the scheduler sent Jobs for worker epoch {message.epoch} after Jobs for epoch {self._scheduler_epoch}"
            )
        self._scheduler_epoch = message.epoch
        if message.epoch < self._worker_epoch or (message.epoch == self._worker_epoch and self._pools is None):
            self._ledger = None
            return
        if message.max_batch < 1:
            raise ProtocolError(f"max_batch in Jobs is {message.max_batch}, but must be at least 1")
        self._ledger = Ledger(
            message.epoch,
            message.max_batch,
            message.quanta_s,
            message.starvation_limit_s,
            displaces=message.displaces,
        )
        for job in message.jobs:
            _add(self._ledger, job, now_s)
        _reorder(self._ledger, message.order, now_s)
        self._open()

    def _from_worker(self, event: FromWorker) -> None:
        message: WorkerToKv = event.message
        if isinstance(message, WorkerPools):
            self._joined(message)
        elif event.epoch == self._worker_epoch and self._ledger is not None and self._ledger.is_open:
            moves.worker_said(self._ledger, message)

    def _joined(self, pools: WorkerPools) -> None:
        """A newer epoch ends the previous one; an older or ended epoch is dropped."""
        if pools.epoch == self._worker_epoch and self._pools is not None:
            raise ProtocolError(f"the worker of epoch {pools.epoch} joined twice")
        if pools.epoch <= self._worker_epoch:
            return
        self._worker_epoch, self._pools = pools.epoch, pools
        if self._scheduler_epoch is not None and self._scheduler_epoch < pools.epoch:
            self._ledger = None
        self._open()

    def _open(self) -> None:
        """Begin once both sides name the same epoch."""
        ledger, pools = self._ledger, self._pools
        if ledger is not None and pools is not None and not ledger.is_open and ledger.epoch == pools.epoch:
            ledger.open(pools.block_size, pools.device_block_count, pools.host_block_count)

    def _worker_lost(self, epoch: Epoch) -> None:
        """The epoch ends. Jobs that the scheduler has sent for a newer epoch are kept."""
        if epoch == self._worker_epoch:
            self._pools = None
            if self._ledger is not None and self._ledger.epoch <= epoch:
                self._ledger = None

    def _scheduler_lost(self) -> list[Command]:
        """If the ledger was open, the worker's tables are void, and it has to begin a new epoch."""
        commands: list[Command] = []
        if self._ledger is not None and self._ledger.is_open:
            commands.append(EndWorker(self._worker_epoch))
            self._pools = None
        self._scheduler_epoch = None
        self._ledger = None
        return commands

    # --- for operators, tests and explorers --------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether both sides name the same epoch."""
        return self._ledger is not None and self._ledger.is_open

    @property
    def epoch(self) -> Epoch:
        """The newest epoch of a worker; 0 before the first."""
        return self._worker_epoch

    def state_of(self, job_id: JobId) -> KvState | None:
        """A job's state; None for an unknown job."""
        known = None if self._ledger is None else self._ledger.jobs.get(job_id)
        return None if known is None else known.state

    def enst_of(self, job_id: JobId, now_s: float) -> float | None:
        """ENST in seconds of a job that is in no plan; None for any other job, and under a policy without quanta."""
        ledger = self._ledger
        job = None if ledger is None else ledger.jobs.get(job_id)
        if ledger is None or job is None or job.plans or job.rank is None or not ledger.quanta_s:
            return None
        return enst_s(job.rank.level, ledger.execute_s(), now_s - job.waiting_since_s, ledger.starvation_limit_s)

    def pool_usage(self) -> PoolUsage | None:
        """State of the pools; None unless ready."""
        ledger = self._ledger
        if ledger is None or not ledger.is_open:
            return None
        device, host = ledger.device, ledger.host
        return PoolUsage(device.count, device.free_count, host.count, host.free_count)

    @property
    def has_swaps(self) -> bool:
        """Whether `take_swaps` would return any job."""
        return self._ledger is not None and bool(self._ledger.swap_changes)

    def take_swaps(self) -> Swaps:
        """The jobs that were swapped out or back since the last call."""
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
        """Assert all invariants. Slow, for tests."""
        if self._ledger is not None:
            self._ledger.check()

    def state_key(self, now_s: float) -> Hashable:
        """Everything that determines what the machine will do, with times relative to now."""
        ledger = None if self._ledger is None else self._ledger.state_key(now_s)
        return (self._scheduler_epoch, self._worker_epoch, self._pools is not None, ledger)


# --- what the scheduler says -----------------------------------------------------------------------------------------


def _add(ledger: Ledger, arrived: ArrivedJob, now_s: float) -> None:
    ledger.add(KvJob(*arrived, now_s))


def _known(ledger: Ledger, job_id: JobId) -> KvJob:
    job = ledger.jobs.get(job_id)
    if job is None:
        raise ProtocolError(f"the scheduler named the unknown job {job_id}")
    return job


def _reorder(ledger: Ledger, changes: Sequence[OrderChange], now_s: float) -> None:
    for job_id, rank in changes:
        ledger.rank(_known(ledger, job_id), rank, now_s)


def _arrive(ledger: Ledger, knobs: KvConfig, message: Arrive, now_s: float) -> None:
    _add(ledger, message.job, now_s)


def _order(ledger: Ledger, knobs: KvConfig, message: Order, now_s: float) -> None:
    _reorder(ledger, message.changes, now_s)


def _planned(ledger: Ledger, knobs: KvConfig, message: Planned, now_s: float) -> None:
    """Entries advance `planned`. An entry that starts below `finished` voids the tokens from there on."""
    jobs, block_size = ledger.jobs, ledger.block_size
    for job_id, from_token, to_token in message.entries:
        job = jobs.get(job_id) or _known(ledger, job_id)
        if job.state is not DEVICE and job.state is not ASKED:
            raise job.broken(f"plan {message.plan_number} names this job, but it is not resident")
        if to_token > job.announced_blocks * block_size:
            capacity_tokens = job.announced_blocks * block_size
            raise job.broken(
                f"plan {message.plan_number} ends at token {to_token}, beyond the capacity of {capacity_tokens}"
            )
        job.planned = to_token
        if from_token < job.finished:
            job.finished = from_token
        job.plans += 1
    if message.plan_number in ledger.plans:
        raise ProtocolError(f"the scheduler announced plan {message.plan_number} twice")
    ledger.plans[message.plan_number] = message.entries
    most_passes = protected_plans(ledger, knobs)
    for job in ledger.brought_in.values():
        if job.state is DEVICE and not job.plans and job.passed_over < most_passes:
            job.passed_over += 1


def _finished(ledger: Ledger, knobs: KvConfig, message: Finished, now_s: float) -> None:
    entries = ledger.plans.pop(message.plan_number, None)
    if entries is None:
        raise ProtocolError(f"the scheduler finished plan {message.plan_number}, which is not under way")
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


def _recalled(ledger: Ledger, knobs: KvConfig, message: Recalled, now_s: float) -> None:
    """Rule 42: everything is as before the plan was announced, except that its jobs have waited since then."""
    if not ledger.plans or message.plan_number != next(reversed(ledger.plans)):
        raise ProtocolError(f"the scheduler recalled plan {message.plan_number}, which is not the last one under way")
    for job_id, from_token, _ in ledger.plans.pop(message.plan_number):
        job = ledger.jobs[job_id]
        job.planned = from_token
        job.plans -= 1
        if not job.plans:
            job.waiting_since_s = now_s


def _ack(ledger: Ledger, knobs: KvConfig, message: Ack, now_s: float) -> None:
    moves.acknowledged(ledger, _known(ledger, message.job_id), knobs.policy.keeps_kv)


def _refuse(ledger: Ledger, knobs: KvConfig, message: Refuse, now_s: float) -> None:
    moves.refused(ledger, _known(ledger, message.job_id))


def _release(ledger: Ledger, knobs: KvConfig, message: Release, now_s: float) -> None:
    """A job that ended just before Jobs was sent is not in Jobs but is released after it. It is unknown here, and
    there is nothing to do.
    """
    job = ledger.jobs.get(message.job_id)
    if job is not None:
        moves.release(ledger, job)


HANDLERS: dict[type[SchedulerToKv], Callable[[Ledger, KvConfig, Any, float], None]] = {
    Arrive: _arrive,
    Order: _order,
    Planned: _planned,
    Finished: _finished,
    Recalled: _recalled,
    Ack: _ack,
    Refuse: _refuse,
    Release: _release,
}
