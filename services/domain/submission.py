"""What gateway and scheduler exchange about jobs: submissions, updates and the limits of a job."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.domain.errors import FastServeError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits that a job must meet. Not `ready`: no worker has joined yet."""

    ready: bool
    max_model_len: int
    device_pool_tokens: int


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a gateway submits it. `body_digest` is the digest of the request's body."""

    job_id: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    resume_from_token: int = 0
    deadline_in_s: float | None = None


class JobTimings(NamedTuple):
    """How a job's time was spent, in seconds, and how often it left the running batch before it ended."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int


class JobUpdate(NamedTuple):
    """New output of one job for one gateway. An update with `finish` (and timings) or `error` is the last one.

    `is_joined`: the job had been submitted before, so its tokens are not new work.
    """

    job_id: JobId
    first_token_number: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: EndReason | None = None
    error: FastServeError | None = None
    timings: JobTimings | None = None
    is_joined: bool = False
