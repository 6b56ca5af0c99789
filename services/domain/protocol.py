"""The messages between scheduler, KV manager and worker, as values.

Positions count the tokens of a job from 0: prompt first, then output. A plan entry (job, from_token, to_token) computes
the KV cache of positions from_token to to_token - 1; when to_token reaches the job's known tokens (prompt and output so
far), the iteration samples the next one. The last output token's KV is never written, so a job's KV holds at most
prompt + max_tokens - 1 tokens.

The same values are events of one side's `handle` and commands of the other's. Those made once per job and iteration are
NamedTuples, because making a frozen dataclass costs three times as much.
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber


class Rank(NamedTuple):
    """Place of a job in the total order; the smaller runs sooner. `arrival_number` breaks the last tie."""

    level: int
    key: float
    arrival_number: int


class PlanEntry(NamedTuple):
    """A job's part in an iteration: positions from_token to to_token - 1."""

    job_id: JobId
    from_token: int
    to_token: int


# --- scheduler -> KV manager -----------------------------------------------------------------------------------------


class ArrivedJob(NamedTuple):
    """A job as the KV manager must know it: tokens it has now, all to be computed, and the most that its KV may come to
    hold.
    """

    job_id: JobId
    known_tokens: int
    most_tokens: int


class OrderChange(NamedTuple):
    """A job's new place."""

    job_id: JobId
    rank: Rank


@dataclass(frozen=True, slots=True)
class Jobs:
    """First on a stream, and at a new worker epoch: all jobs, none of them resident, and what ENST needs to know of the
    policy.

    `quanta_s` is empty for a policy without quanta; `starvation_limit_s` is None where nobody is promoted.
    """

    epoch: Epoch
    jobs: tuple[ArrivedJob, ...]
    order: tuple[OrderChange, ...]
    max_batch: int
    quanta_s: tuple[float, ...]
    starvation_limit_s: float | None


class Arrive(NamedTuple):
    """A new job. Its place follows in the Order of the same turn."""

    job: ArrivedJob


class Planned(NamedTuple):
    """A plan was sent to the worker."""

    plan_number: PlanNumber
    entries: tuple[PlanEntry, ...]


class Finished(NamedTuple):
    """A plan's result is back from the last stage. `cut`: its jobs whose prefill was abandoned; of that entry no KV is
    kept.
    """

    plan_number: PlanNumber
    cut_job_ids: tuple[JobId, ...] = ()


class Ack(NamedTuple):
    """Consent to a ReclaimRequest: no unfinished plan names the job, no new one will until it is Resident again."""

    job_id: JobId


class Refuse(NamedTuple):
    """The job outranks the beneficiary now: it stays. The Order that says so was sent before."""

    job_id: JobId


class Release(NamedTuple):
    """The job ended and is in no unfinished plan."""

    job_id: JobId


class Order(NamedTuple):
    """Places that changed since the last Order."""

    changes: tuple[OrderChange, ...]


SchedulerToKv = Jobs | Arrive | Planned | Finished | Ack | Refuse | Release | Order

# --- KV manager -> scheduler -----------------------------------------------------------------------------------------


class Resident(NamedTuple):
    """The job's KV is on the device: it may be planned from valid_tokens (0: prefill) up to capacity_tokens."""

    job_id: JobId
    capacity_tokens: int
    valid_tokens: int


class Grown(NamedTuple):
    """A resident job may be planned up to capacity_tokens."""

    job_id: JobId
    capacity_tokens: int


class ReclaimRequest(NamedTuple):
    """May this job's device blocks be taken, for `beneficiary` or (None) to make room ahead of need?"""

    job_id: JobId
    beneficiary_id: JobId | None


KvToScheduler = Resident | Grown | ReclaimRequest

# --- KV manager -> worker --------------------------------------------------------------------------------------------


class BlockMove(NamedTuple):
    """One block's copy between the pools: table_index in the job's table, and the block on either side."""

    table_index: int
    device_block: BlockId
    host_block: BlockId


class Assign(NamedTuple):
    """Append device blocks to the job's device table."""

    command_number: CommandNumber
    job_id: JobId
    device_blocks: tuple[BlockId, ...]


class Offload(NamedTuple):
    """Copy blocks to the host. The device table ends at once, the host table begins."""

    command_number: CommandNumber
    job_id: JobId
    moves: tuple[BlockMove, ...]
    valid_tokens: int


class Upload(NamedTuple):
    """Copy blocks to the device.

    `device_blocks` is the whole new device table and may be longer than `moves`. The host copy is void at Done.
    """

    command_number: CommandNumber
    job_id: JobId
    device_blocks: tuple[BlockId, ...]
    moves: tuple[BlockMove, ...]
    valid_tokens: int


class ReleaseBlocks(NamedTuple):
    """Forget both tables and the job. Copies under way go on and are reported Done as usual."""

    command_number: CommandNumber
    job_id: JobId


KvToWorker = Assign | Offload | Upload | ReleaseBlocks

# --- worker -> KV manager --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerPools:
    """First of a worker's stage at a new epoch: its pools, both empty."""

    epoch: Epoch
    block_size: int
    device_block_count: int
    host_block_count: int
    stage: int
    stage_count: int


class Applied(NamedTuple):
    """The command's effect on the tables is known at this stage."""

    command_number: CommandNumber
    stage: int


class Done(NamedTuple):
    """The command's copies have ended at this stage (at once for a command without copies: then it is not sent)."""

    command_number: CommandNumber
    stage: int


WorkerToKv = WorkerPools | Applied | Done

# --- worker -> scheduler ---------------------------------------------------------------------------------------------


class SampledToken(NamedTuple):
    """One output token. `end_of_sequence`: it is one of the job's stop tokens, the job ends."""

    job_id: JobId
    token_id: int
    end_of_sequence: bool


@dataclass(frozen=True, slots=True)
class IterationResult:
    """What a plan made, in `duration_s` seconds of the worker's time.

    `cut`: prefills abandoned at their limit, nothing of them is kept.
    """

    epoch: Epoch
    plan_number: PlanNumber
    tokens: tuple[SampledToken, ...]
    cut_job_ids: tuple[JobId, ...]
    duration_s: float
