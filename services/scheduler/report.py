"""The state of the whole server, for AdminService and /metrics. Meanings are those of admin.proto."""

from dataclasses import dataclass, fields

from services.domain.work import PoolStatus, WorkerCounters, WorkerFacts
from services.scheduler.policy.counters import Counters
from services.scheduler.policy.status import LevelCount, Status


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One worker group."""

    group: int
    ready: bool
    levels: tuple[LevelCount, ...]
    device_blocks_total: int
    device_blocks_free: int
    host_blocks_total: int
    host_blocks_free: int
    block_size: int
    device: str
    worker_joins: int

    @property
    def running(self) -> int:
        """Jobs in a plan under way."""
        return sum(level.running for level in self.levels)

    @property
    def waiting(self) -> int:
        """Jobs neither running nor swapped out."""
        return sum(level.waiting for level in self.levels)

    @property
    def swapped_out(self) -> int:
        """Jobs whose KV cache is in host memory or on its way there."""
        return sum(level.swapped_out for level in self.levels)


@dataclass(frozen=True, slots=True)
class ServerReport:
    """A snapshot. `counters` go on counting and are to be read at once; `worker` is over all lives of the worker."""

    model: str
    policy: str
    kv_policy: str
    groups: tuple[GroupReport, ...]
    worker: WorkerCounters
    counters: Counters
    uptime_s: float
    max_queued_jobs: int


class WorkerLives:
    """A worker counts since its life (epoch) began; this adds up its lives."""

    def __init__(self) -> None:
        self._before = WorkerCounters()
        self._present = WorkerCounters()

    def born(self) -> None:
        """A new life begins at nothing."""
        self._before, self._present = self.total(), WorkerCounters()

    def counted(self, counters: WorkerCounters) -> None:
        """What the present life has counted so far."""
        self._present = counters

    def total(self) -> WorkerCounters:
        """All lives together."""
        pairs = ((getattr(self._before, one.name), getattr(self._present, one.name)) for one in fields(WorkerCounters))
        return WorkerCounters(*(before + present for before, present in pairs))


def group_report(status: Status, facts: WorkerFacts | None, pools: PoolStatus | None) -> GroupReport:
    """The one group. Pools are free where the KV manager has not said otherwise; without a worker there are none."""
    device_blocks, host_blocks = (0, 0) if facts is None else (facts.device_blocks, facts.host_blocks)
    if facts is None:
        pools = None
    return GroupReport(
        group=0,
        ready=status.ready,
        levels=status.levels,
        device_blocks_total=device_blocks,
        device_blocks_free=device_blocks if pools is None else pools.device_blocks_free,
        host_blocks_total=host_blocks,
        host_blocks_free=host_blocks if pools is None else pools.host_blocks_free,
        block_size=0 if facts is None else facts.block_size,
        device="" if facts is None else facts.device,
        worker_joins=status.counters.worker_joins,
    )
