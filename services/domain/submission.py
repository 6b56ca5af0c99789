"""What gateway and scheduler tell each other of a job: how it is submitted, what is new of it, what a job may be."""

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
    """What a job may be. Not `ready`: no worker has joined yet."""

    ready: bool
    max_model_len: int
    device_pool_tokens: int


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a gateway submits it: `body_digest` is that of the request's body."""

    job_id: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    resume_from_token: int = 0
    deadline_in_s: float | None = None


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

    job_id: JobId
    first_token_number: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: EndReason | None = None
    error: FastServeError | None = None
    timings: JobTimings | None = None
    is_joined: bool = False
