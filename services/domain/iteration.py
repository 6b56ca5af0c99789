"""An iteration as scheduler and worker exchange it: the plan with its tokens, and the result with its counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.domain.generation import TokenLogprob
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.protocol import IterationResult


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a worker needs to know to start or resume a job. Prefill tokens beyond `prompt_tokens` are earlier output.

    A token is sampled once `known_tokens` tokens have been computed.
    """

    prompt_tokens: int
    known_tokens: int
    sampling: JobSampling


class PlanWork(NamedTuple):
    """A plan entry as the worker receives it. `token_ids` are the tokens of a prefill, empty for a decode; `spec` is
    present at position 0.

    A prefill is abandoned after `cut_after_s` seconds of compute; None: never. `next_token_id`: the prompt's token
    after these, where its log probability is wanted.
    """

    job_id: JobId
    from_token: int
    to_token: int
    token_ids: Sequence[int]
    spec: JobSpec | None
    cut_after_s: float | None
    next_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """An iteration as the worker receives it."""

    epoch: Epoch
    plan_number: PlanNumber
    entries: tuple[PlanWork, ...]


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """Counters since the worker's present epoch began.

    `stall_s`: time that a plan waited for a copy. `plan_wait_s`: time between iterations in which the worker had jobs
    but no plan.
    """

    stall_s: float = 0.0
    busy_s: float = 0.0
    plan_wait_s: float = 0.0
    offloaded_bytes: int = 0
    uploaded_bytes: int = 0

    @property
    def plan_wait_share(self) -> float:
        """Share of the time with jobs that passed without a plan, 0 to 1; 0 before the first job."""
        with_jobs_s = self.busy_s + self.stall_s + self.plan_wait_s
        return self.plan_wait_s / with_jobs_s if with_jobs_s > 0 else 0.0

    def since(self, earlier: "WorkerCounters") -> "WorkerCounters":
        """The difference to `earlier` counters."""
        return WorkerCounters(
            self.stall_s - earlier.stall_s,
            self.busy_s - earlier.busy_s,
            self.plan_wait_s - earlier.plan_wait_s,
            self.offloaded_bytes - earlier.offloaded_bytes,
            self.uploaded_bytes - earlier.uploaded_bytes,
        )


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """An iteration's result, with log probabilities for clients and counters for operators. `failures`: jobs whose
    guide could not be followed any further, and why. `scored`: log probabilities of prompts, part by part.
    """

    result: IterationResult
    logprobs: Mapping[JobId, TokenLogprob]
    counters: WorkerCounters
    failures: Mapping[JobId, str] = field(default_factory=dict)
    scored: Sequence[ScoredPrompt] = ()
