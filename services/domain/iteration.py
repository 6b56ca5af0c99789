"""One iteration as scheduler and worker exchange it: the plan with its tokens, and the result with what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.domain.generation import TokenLogprob
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.job_sampling import JobSampling
from services.domain.protocol import IterationResult


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

    job_id: JobId
    from_token: int
    to_token: int
    token_ids: Sequence[int]
    spec: JobSpec | None
    cut_after_s: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One iteration as the worker gets it."""

    epoch: Epoch
    plan_number: PlanNumber
    entries: tuple[PlanWork, ...]


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """Since the worker's present epoch began.

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
