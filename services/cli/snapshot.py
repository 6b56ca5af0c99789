"""A server's status as values: what `top` shows, what `bench` samples and subtracts."""

from dataclasses import asdict, dataclass, fields

RESTART_MARGIN_S = 2.0
"""How much longer a status may be under way than the one before it. A restart costs more of the uptime than that."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters since the scheduler started; the difference of two is what happened between them."""

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

    def since(self, before: "Counters") -> "Counters":
        """What happened after `before`, of the same life of the scheduler."""
        return Counters(**{item.name: getattr(self, item.name) - getattr(before, item.name) for item in fields(self)})


@dataclass(frozen=True, slots=True)
class LevelSnapshot:
    """Jobs of one level; each is counted once. `quantum_s` 0 is a policy without quanta."""

    level: int
    quantum_s: float
    running: int
    waiting: int
    swapped_out: int


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One worker group."""

    group: int
    ready: bool
    levels: tuple[LevelSnapshot, ...]
    running: int
    waiting: int
    swapped_out: int
    device_blocks_total: int
    device_blocks_free: int
    host_blocks_total: int
    host_blocks_free: int
    block_size: int
    device: str
    worker_joins: int

    @property
    def jobs(self) -> int:
        """All jobs of the group."""
        return self.running + self.waiting + self.swapped_out


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole server at one moment."""

    model: str
    policy: str
    kv_policy: str
    groups: tuple[GroupSnapshot, ...]
    counters: Counters
    uptime_s: float
    max_queued_jobs: int
    admission_rejections: int

    @property
    def jobs(self) -> int:
        """All jobs of all groups."""
        return sum(group.jobs for group in self.groups)

    def counters_since(self, before: "Snapshot", elapsed_s: float) -> Counters:
        """What happened after `before`, which came `elapsed_s` earlier. A scheduler that was restarted in between
        counts from 0; it is younger than it was, or than it would be.
        """
        is_younger = self.uptime_s < before.uptime_s + max(0.0, elapsed_s - RESTART_MARGIN_S)
        old = before.counters
        counts_less = self.counters.iterations < old.iterations or self.counters.jobs_admitted < old.jobs_admitted
        return self.counters.since(Counters() if is_younger or counts_less else old)

    def as_json(self, time_s: float) -> dict[str, object]:
        """A line of `status.jsonl`; `time_s` counts from the replay's start."""
        return {"time_s": round(time_s, 4), **asdict(self)}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as ListModels tells it."""

    id: str
    max_model_len: int
    vocabulary_size: int
