"""What came of a simulation, as values."""

from array import array
from dataclasses import dataclass

from services.domain.server_status import ServerCounters


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job. Times are as its client sees them: a message's delay after the scheduler gave the token out.

    `finish_reason` is "length", "stop", "cancelled" or "abort"; for a job that was refused it is empty, and `error`
    says why. `queue_s`: arrival to its first plan. `executing_s`: seconds of the iterations that it took part in; what
    else of its time is spent waiting. `uploading_s`, a part of that: from each upload command to the end of its copies,
    so that what it waited for the link is in it. `preemptions`: how often it left the batch for another's sake.
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
class Simulation:
    """All of it, `outcomes` in the order of the jobs given.

    Seconds are summed over groups and are those of the group, the mean of its stages. `counters` are what a server's
    status would tell, but for what clients sent: tokens and jobs are not counted. `swap_s`: a copy ran between the
    pools; `swap_exposed_s`: the part of it in which nothing was computed. `peak_kv_tokens`: most KV in use at any time,
    in both pools and all groups, in tokens of whole blocks. `duration_s`: from the beginning of the clock to the last
    token.
    """

    outcomes: tuple[JobOutcome, ...]
    counters: ServerCounters
    swap_s: float
    swap_exposed_s: float
    peak_kv_tokens: int
    peak_device_kv_tokens: int
    duration_s: float
