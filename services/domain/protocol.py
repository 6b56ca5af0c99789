"""The messages between scheduler, KV manager and worker, as values.

Positions number the tokens of a job from 0, prompt first, then output. A plan entry (job, from_token, to_token)
computes the KV cache of positions from_token to to_token - 1; when to_token reaches the job's known tokens (prompt and
output so far), the iteration samples the next token. The KV of the last output token is never written, so a job's KV
holds at most prompt + max_tokens - 1 tokens.

The same values are events of one side's `handle` and commands of the other's. Values created once per job and iteration
are NamedTuples, because creating a frozen dataclass takes three times as long.
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber


class Rank(NamedTuple):
    """A job's place in the total order; the smaller rank runs sooner. `arrival_number` breaks remaining ties."""

    level: int
    key: float
    arrival_number: int


class PlanEntry(NamedTuple):
    """A job's part of an iteration: positions from_token to to_token - 1."""

    job_id: JobId
    from_token: int
    to_token: int


# --- scheduler -> KV manager -----------------------------------------------------------------------------------------


class ArrivedJob(NamedTuple):
    """A job as announced to the KV manager: its present tokens, all still to be computed, and the most tokens that its
    KV may hold.

    `stay_number` is the number of its arrival at this scheduler machine. An id may come again, so what the KV manager
    says of a job repeats it (rule 28).
    """

    job_id: JobId
    known_tokens: int
    most_tokens: int
    stay_number: int


class OrderChange(NamedTuple):
    """A job's new rank."""

    job_id: JobId
    rank: Rank


@dataclass(frozen=True, slots=True)
class Jobs:
    """The first message on a stream and of a new worker epoch: all jobs, none of them resident, and the policy's
    parameters for ENST.

    `quanta_s` is empty for a policy without quanta; `starvation_limit_s` is None if no job is promoted. `displaces`: a
    job that waits may take blocks from jobs below it; if not, only the growth of a resident job may.
    """

    epoch: Epoch
    jobs: tuple[ArrivedJob, ...]
    order: tuple[OrderChange, ...]
    max_batch: int
    quanta_s: tuple[float, ...]
    starvation_limit_s: float | None
    displaces: bool = True


class Arrive(NamedTuple):
    """A new job. Its rank follows in the Order of the same turn."""

    job: ArrivedJob


GROWTH_TOKENS = 16
"""While half of the pool is free, a job gets more blocks when so much of its capacity is unplanned (rule 16): until
then the KV manager need not know how its plans go on.
"""


class Planned(NamedTuple):
    """A plan was sent to the worker."""

    plan_number: PlanNumber
    entries: tuple[PlanEntry, ...]


class Finished(NamedTuple):
    """A plan's result is back from the last stage. `cut_job_ids`: jobs whose prefill was abandoned; no KV of that entry
    is kept.
    """

    plan_number: PlanNumber
    cut_job_ids: tuple[JobId, ...] = ()


class Recalled(NamedTuple):
    """A plan will not be run: the worker gave it back (rule 42). Of several the newest comes first."""

    plan_number: PlanNumber


class Ack(NamedTuple):
    """Consent to a ReclaimRequest: no unfinished plan names the job, and no new plan will until it is Resident
    again.
    """

    job_id: JobId


class Refuse(NamedTuple):
    """The job now outranks the beneficiary, so it stays. The Order that says so has been sent before."""

    job_id: JobId


class Release(NamedTuple):
    """The job ended, and no unfinished plan names it."""

    job_id: JobId


class Order(NamedTuple):
    """Ranks that changed since the last Order."""

    changes: tuple[OrderChange, ...]


SchedulerToKv = Jobs | Arrive | Planned | Finished | Recalled | Ack | Refuse | Release | Order

# --- KV manager -> scheduler -----------------------------------------------------------------------------------------


class Resident(NamedTuple):
    """The job's KV is on the device: it may be planned from valid_tokens (0: prefill) up to capacity_tokens."""

    job_id: JobId
    capacity_tokens: int
    valid_tokens: int
    stay_number: int


class Grown(NamedTuple):
    """A resident job may be planned up to capacity_tokens."""

    job_id: JobId
    capacity_tokens: int
    stay_number: int


class ReclaimRequest(NamedTuple):
    """Asks for this job's device blocks, for the job `beneficiary_id` or (None) to make room ahead of need."""

    job_id: JobId
    beneficiary_id: JobId | None
    stay_number: int


KvToScheduler = Resident | Grown | ReclaimRequest

# --- KV manager -> worker --------------------------------------------------------------------------------------------


class BlockMove(NamedTuple):
    """The copy of one block between the pools: its index in the job's table, and the block on each side."""

    table_index: int
    device_block: BlockId
    host_block: BlockId


class Assign(NamedTuple):
    """Append device blocks to the job's device table."""

    command_number: CommandNumber
    job_id: JobId
    device_blocks: tuple[BlockId, ...]


class Offload(NamedTuple):
    """Copy blocks to the host. The device table ends at once, and the host table begins."""

    command_number: CommandNumber
    job_id: JobId
    moves: tuple[BlockMove, ...]
    valid_tokens: int


class Upload(NamedTuple):
    """Copy blocks to the device.

    `device_blocks` is the whole new device table and may be longer than `moves`. The host copy is void once the command
    is Done.
    """

    command_number: CommandNumber
    job_id: JobId
    device_blocks: tuple[BlockId, ...]
    moves: tuple[BlockMove, ...]
    valid_tokens: int


class ReleaseBlocks(NamedTuple):
    """Forget the job and both its tables. Copies under way continue and are reported Done as usual."""

    command_number: CommandNumber
    job_id: JobId


KvToWorker = Assign | Offload | Upload | ReleaseBlocks

# --- worker -> KV manager --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerPools:
    """The first message of a worker in a new epoch: its two pools, both empty. Of a group of ranks, the smallest."""

    epoch: Epoch
    block_size: int
    device_block_count: int
    host_block_count: int


class Applied(NamedTuple):
    """The command's effect on the tables is in force."""

    command_number: CommandNumber


class Done(NamedTuple):
    """The command's copies have ended, on every rank of the worker. Not sent for a command without copies."""

    command_number: CommandNumber


WorkerToKv = WorkerPools | Applied | Done

# --- worker -> scheduler ---------------------------------------------------------------------------------------------


class SampledToken(NamedTuple):
    """An output token. `end_of_sequence`: it is one of the job's stop tokens, so the job ends."""

    job_id: JobId
    token_id: int
    end_of_sequence: bool


@dataclass(frozen=True, slots=True)
class IterationResult:
    """The result of a plan, which took `duration_s` seconds of the worker's time.

    `cut_job_ids`: jobs whose prefill was abandoned at its limit; nothing of it is kept.
    """

    epoch: Epoch
    plan_number: PlanNumber
    tokens: tuple[SampledToken, ...]
    cut_job_ids: tuple[JobId, ...]
    duration_s: float


class PlansGivenBack(NamedTuple):
    """The answer to a recall (rule 42): the worker will not run the plans from this number on. None: it runs all."""

    epoch: Epoch
    first_plan_number: PlanNumber | None
