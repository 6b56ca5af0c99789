"""What the services tell each other beside the bare protocol: jobs and their tokens, sampling, log probabilities, facts
about the worker.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.domain.cost import CostProfile
from services.domain.errors import FastServeError
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import IterationResult, KvToScheduler, WorkerPools
from services.domain.sampling import JobSampling


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a worker must know of a job to go on with it. Tokens of a prefill beyond `prompt_tokens` are output made
    earlier.

    A token is sampled when `known_tokens` tokens are computed.
    """

    prompt_tokens: int
    known_tokens: int
    sampling: JobSampling


class PlanWork(NamedTuple):
    """A plan entry as the worker gets it. `token_ids` are those of a prefill's positions, empty for a decode; `spec`
    comes with position 0.

    A prefill is abandoned after `cut_after_s` seconds of compute, None never.
    """

    job: JobId
    from_token: int
    to_token: int
    token_ids: Sequence[int]
    spec: JobSpec | None
    cut_after_s: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration as the worker gets it."""

    epoch: Epoch
    plan: PlanNumber
    entries: tuple[PlanWork, ...]


class TokenLogprob(NamedTuple):
    """Natural log probability of a chosen token under the model's own distribution, and the best alternatives (token
    id, log probability).
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """Since the worker's present life began.

    `stall_s`: a plan at hand waited for a copy; `plan_wait_s`: jobs known, no plan at hand, between iterations.
    """

    stall_s: float = 0.0
    busy_s: float = 0.0
    plan_wait_s: float = 0.0
    offloaded_bytes: int = 0
    uploaded_bytes: int = 0

    def since(self, earlier: "WorkerCounters") -> "WorkerCounters":
        """What was counted after `earlier`."""
        return WorkerCounters(
            self.stall_s - earlier.stall_s,
            self.busy_s - earlier.busy_s,
            self.plan_wait_s - earlier.plan_wait_s,
            self.offloaded_bytes - earlier.offloaded_bytes,
            self.uploaded_bytes - earlier.uploaded_bytes,
        )


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """An iteration's result with what only clients and operators look at."""

    result: IterationResult
    logprobs: Mapping[JobId, TokenLogprob]
    counters: WorkerCounters


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker says of itself when it joins. `device` is "cpu" or the GPU's name."""

    epoch: Epoch
    group: int
    model_fingerprint: str
    block_size: int
    device_blocks: int
    host_blocks: int
    max_model_len: int
    block_bytes: int
    profile: CostProfile
    device: str


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What a job may be. Not `ready`: no worker has joined yet."""

    ready: bool
    max_model_len: int
    device_pool_tokens: int


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What the KV manager tells the scheduler for AdminService, beside the protocol: free blocks, and the jobs that
    left for the host or came back.
    """

    device_blocks_free: int
    host_blocks_free: int
    kv_policy: str
    swapped_out: tuple[JobId, ...] = ()
    swapped_in: tuple[JobId, ...] = ()


KvLinkItem = KvToScheduler | PoolStatus
"""All that the KV manager sends to the scheduler."""


@dataclass(frozen=True, slots=True)
class KvWorkerFacts:
    """What a worker says of itself when it joins the KV manager."""

    group: int
    pools: WorkerPools
    block_bytes: int


# --- between gateway and scheduler -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a gateway submits it: `body_digest` is that of the request's body."""

    job: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    resume_from_token: int = 0
    deadline_in_s: float | None = None


class CancelReason(Enum):
    """Why a gateway ends a job."""

    CLIENT_GONE = "client-gone"
    STOP_STRING = "stop-string"
    DEADLINE = "deadline"


class FinishReason(Enum):
    """How a job ended that was not refused and did not fail."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class JobTimings(NamedTuple):
    """Where a job's time went, in seconds, and how often it left the running batch before its end."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int


class JobUpdate(NamedTuple):
    """News of one job for one gateway. With `finish` (and timings) or `error` it is the last.

    `is_joined`: the job had been submitted before, and its tokens are no new work.
    """

    job: JobId
    first_token_number: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: FinishReason | None = None
    error: FastServeError | None = None
    timings: JobTimings | None = None
    is_joined: bool = False
