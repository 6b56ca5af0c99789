"""The results of a simulation, as values."""

from array import array
from dataclasses import dataclass

from services.domain.group_backlog import GroupBacklog
from services.domain.server_status import ServerCounters


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of one job. Times are as its client sees them: one message delay after the scheduler emitted the
    token.

    `finish_reason` is "length", "stop", "cancelled" or "abort"; for a refused job it is empty, and `error` says why.
    `queue_s`: from its arrival to its first plan. `executing_s`: seconds of the iterations that it took part in; it
    spends the rest of its time waiting. `uploading_s`, a part of that: from each upload command to the end of its
    copies, including the wait for the link. `preemptions`: how often it left the batch to make room for another job.
    """

    job_id: str
    arrival_s: float
    prompt_tokens: int
    token_times_s: "array[float]"
    finish_reason: str
    preemptions: int = 0
    queue_s: float = 0.0
    executing_s: float = 0.0
    uploading_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """A group's pod: from when it was asked for until it was gone, in seconds."""

    group: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation; `outcomes` are in the order of the given jobs.

    Seconds are summed over groups; those of a group are the mean of its stages. `counters` are those of a server's
    status, except that tokens and jobs are not counted. `swap_s`: time in which a copy ran between the pools;
    `swap_exposed_s`: the part of it in which nothing was computed. `peak_kv_tokens`: the most KV in use at any time, in
    both pools and all groups, in tokens of whole blocks. `duration_s`: from the start of the clock to the last token.
    `foreseen`: what each group's scheduler expected when it was asked. `spans`: the pods of groups that came and went,
    up to `duration_s`; empty where all were there all the time.
    """

    outcomes: tuple[JobOutcome, ...]
    counters: ServerCounters
    swap_s: float
    swap_exposed_s: float
    peak_kv_tokens: int
    peak_device_kv_tokens: int
    duration_s: float
    foreseen: tuple[GroupBacklog, ...] = ()
    spans: tuple[GroupSpan, ...] = ()
