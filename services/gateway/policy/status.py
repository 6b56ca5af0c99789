"""The part of the scheduler's status that the metrics show."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """Jobs and blocks of one worker group; every job is in exactly one of running, waiting and swapped_out."""

    group: int
    running: int
    waiting: int
    swapped_out: int
    device_blocks_total: int
    device_blocks_free: int
    host_blocks_total: int
    host_blocks_free: int


@dataclass(frozen=True, slots=True)
class IterationTokens:
    """A histogram: `counts` are not cumulated and have one entry more than `bounds`."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: int


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """What the scheduler counted since it started, and its groups."""

    groups: tuple[GroupLoad, ...]
    preemptions: int
    admission_rejections: int
    iteration_tokens: IterationTokens
