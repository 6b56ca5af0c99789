"""The status that operators see: one set of values from scheduler and KV manager for /metrics, GetStatus, `top` and
result.json. For meanings and units see admin.proto.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import NamedTuple

from services.domain.ids import JobId
from services.domain.protocol import KvToScheduler

RESTART_MARGIN_S = 2.0
"""How much longer a status may be under way than the previous one. A restart reduces the uptime by more than that."""

ITERATION_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets of `IterationTokens`; one more bucket without a bound follows."""

SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.05, 60.0
"""Of a status that is sent again and again."""

MOST_LISTED_JOBS = 1000
"""The most jobs that a status lists one by one. It is what a page can show, and what a scheduler can list between two
iterations: some ms.
"""


class PoolUsage(NamedTuple):
    """Blocks of a group's two pools."""

    device_blocks_total: int
    device_blocks_free: int
    host_blocks_total: int
    host_blocks_free: int

    @property
    def device_share(self) -> float:
        """Used share of the device pool, 0 to 1."""
        return _used_share(self.device_blocks_total, self.device_blocks_free)

    @property
    def host_share(self) -> float:
        """Used share of the host pool, 0 to 1."""
        return _used_share(self.host_blocks_total, self.host_blocks_free)


NO_POOLS = PoolUsage(0, 0, 0, 0)
"""The pools of a group without a worker."""


def _used_share(total: int, free: int) -> float:
    return 1.0 - free / total if total else 0.0


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What the KV manager reports to the scheduler for operators, beside PROTOCOL: free blocks, and the jobs that were
    swapped out or back in.
    """

    device_blocks_free: int
    host_blocks_free: int
    kv_policy: str
    swapped_out_job_ids: tuple[JobId, ...] = ()
    swapped_in_job_ids: tuple[JobId, ...] = ()


KvLinkItem = KvToScheduler | PoolStatus
"""Everything that the KV manager sends to the scheduler."""


class JobPhase(Enum):
    """Where a job stands; the values are those of admin.proto's JobState."""

    RUNNING = 1
    """In a plan under way."""
    WAITING = 2
    """Neither running nor swapped out."""
    SWAPPED_OUT = 3
    """Its KV cache is in host memory or on its way there."""


class KvSite(Enum):
    """Where a job's KV cache is; the values are those of admin.proto."""

    NONE = 1
    """Nowhere: the job has not begun, or its KV was dropped and will be computed again."""
    DEVICE = 2
    HOST = 3
    """In host memory or on its way there."""


class JobStatus(NamedTuple):
    """One job. `alias` stands for its id, which is the client's own; it stays while the job stays in its group."""

    alias: str
    group: int
    level: int
    phase: JobPhase
    kv: KvSite
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LevelStatus:
    """The jobs of one level, each counted once. `quantum_s` is 0 for a policy without quanta."""

    level: int
    quantum_s: float
    running: int
    waiting: int
    swapped_out: int


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Counters of a group or of all groups, since the scheduler started, over all epochs of the workers; the difference
    of two is what happened in between.
    """

    preemptions: int = 0
    promotions: int = 0
    demotions: int = 0
    iterations: int = 0
    offloaded_bytes: int = 0
    uploaded_bytes: int = 0
    recomputed_tokens: int = 0
    stall_s: float = 0.0
    busy_s: float = 0.0
    plan_wait_s: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    jobs_admitted: int = 0
    jobs_finished: int = 0
    moves: int = 0

    @classmethod
    def total(cls, parts: Iterable["ServerCounters"]) -> "ServerCounters":
        """The sum of several groups' counters."""
        listed = list(parts)
        return cls(**{one.name: sum(getattr(part, one.name) for part in listed) for one in fields(cls)})

    def since(self, before: "ServerCounters") -> "ServerCounters":
        """What happened since `before`, which must be from the same run of the scheduler."""
        names = [one.name for one in fields(self)]
        return ServerCounters(**{name: getattr(self, name) - getattr(before, name) for name in names})


class IterationTokens(NamedTuple):
    """A histogram of tokens per iteration. `counts` are not cumulative and have one entry more than `bounds`."""

    bounds: tuple[float, ...] = ITERATION_TOKEN_BOUNDS
    counts: tuple[int, ...] = (0,) * (len(ITERATION_TOKEN_BOUNDS) + 1)
    sum: int = 0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One worker group. Every job is in exactly one state: running (in a plan under way), swapped out (its KV cache is
    in host memory or on its way there) or waiting. The wire carries `iteration_tokens` of all groups together only.
    """

    group: int
    ready: bool
    levels: tuple[LevelStatus, ...]
    pools: PoolUsage
    block_size: int
    device: str
    worker_joins: int
    max_batch: int
    """Most jobs of an iteration: the flag's, or the best by its worker's profile."""
    counters: ServerCounters = field(default_factory=ServerCounters)
    iteration_tokens: IterationTokens = field(default_factory=IterationTokens)
    draining: bool = False
    """Its worker was told to end: it gets no new jobs."""

    @property
    def running(self) -> int:
        """Jobs in a plan under way."""
        return sum(level.running for level in self.levels)

    @property
    def waiting(self) -> int:
        """Jobs that are neither running nor swapped out."""
        return sum(level.waiting for level in self.levels)

    @property
    def swapped_out(self) -> int:
        """Jobs whose KV cache is in host memory or on its way there."""
        return sum(level.swapped_out for level in self.levels)

    @property
    def jobs(self) -> int:
        """All jobs of the group."""
        return self.running + self.waiting + self.swapped_out

    def as_json(self) -> dict[str, object]:
        """A group as part of a line of `status.jsonl`."""
        return {
            "group": self.group,
            "ready": self.ready,
            "levels": [asdict(level) for level in self.levels],
            "running": self.running,
            "waiting": self.waiting,
            "swapped_out": self.swapped_out,
            **self.pools._asdict(),
            "block_size": self.block_size,
            "device": self.device,
            "worker_joins": self.worker_joins,
            "max_batch": self.max_batch,
            "draining": self.draining,
        }


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The whole server at one moment. `rejections` counts jobs that were not admitted, by reason; the wire carries only
    "full".
    """

    model: str
    policy: str
    kv_policy: str
    groups: tuple[GroupStatus, ...]
    counters: ServerCounters
    uptime_s: float
    max_queued_jobs: int
    rejections: Mapping[str, int] = field(default_factory=dict)
    iteration_tokens: IterationTokens = field(default_factory=IterationTokens)
    listed_jobs: tuple[JobStatus, ...] = ()
    """As many as were asked for: group by group, in the order in which they would run."""
    unplaced_jobs: int = 0
    """Jobs that wait for a worker group to come."""

    @property
    def jobs(self) -> int:
        """All jobs, of all groups and of none."""
        return self.unplaced_jobs + sum(group.jobs for group in self.groups)

    @property
    def admission_rejections(self) -> int:
        """Jobs refused because too many jobs or tokens were queued."""
        return self.rejections.get("full", 0)

    def counters_since(self, before: "ServerStatus", elapsed_s: float) -> ServerCounters:
        """What happened since `before`, which was taken `elapsed_s` earlier. A scheduler that was restarted in between
        counts from 0; it is recognised by a shorter uptime than expected, or by smaller counters.
        """
        is_younger = self.uptime_s < before.uptime_s + max(0.0, elapsed_s - RESTART_MARGIN_S)
        old = before.counters
        counts_less = self.counters.iterations < old.iterations or self.counters.jobs_admitted < old.jobs_admitted
        return self.counters.since(ServerCounters() if is_younger or counts_less else old)

    def as_json(self, time_s: float) -> dict[str, object]:
        """A line of `status.jsonl`; `time_s` counts from the start of the run."""
        return {
            "time_s": round(time_s, 4),
            "model": self.model,
            "policy": self.policy,
            "kv_policy": self.kv_policy,
            "groups": [group.as_json() for group in self.groups],
            "counters": asdict(self.counters),
            "uptime_s": self.uptime_s,
            "max_queued_jobs": self.max_queued_jobs,
            "admission_rejections": self.admission_rejections,
            "unplaced_jobs": self.unplaced_jobs,
        }
