"""What gateway and scheduler exchange about jobs: submissions, updates and the limits of a job."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.domain.errors import FastServeError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs

CLIENT_NUMBERS = 4096
MOST_CLIENT_CHARACTERS = 64


def client_number_of(client: str) -> int:
    """A number for a client: from 1, less than CLIENT_NUMBERS; 0 for one without a name. A digest so short that a few
    clients share a number, and that a number does not tell a name.
    """
    if not client:
        return 0
    digest = hashlib.sha256(client.encode("utf-8", "surrogatepass")).digest()
    return 1 + int.from_bytes(digest[:8], "big") % (CLIENT_NUMBERS - 1)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Limits that a job must meet. Not `ready`: no worker has joined yet."""

    ready: bool
    max_model_len: int
    device_pool_tokens: int


def no_tokens() -> "array[int]":
    """Token ids, none so far."""
    return array("I")


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as a gateway submits it. `body_digest` is the digest of the request's body. `client_number`: see
    client_number_of.

    If it is submitted again (PROTOCOL 37), `output` has the tokens that the gateway has got, `output_logprobs` one for
    each if they are asked for, and `age_s` is the time since the gateway took the request.
    """

    job_id: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    resume_from_token: int = 0
    deadline_in_s: float | None = None
    client_number: int = 0
    traceparent: str = ""
    """The trace that the job is part of, as W3C Trace Context writes it; empty: it is not sampled."""
    output: "array[int]" = field(default_factory=no_tokens)
    output_logprobs: Sequence[TokenLogprob] = ()
    age_s: float = 0.0


class JobTimings(NamedTuple):
    """How a job's time was spent, in seconds, and how often it left the running batch before it ended."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int


class JobUpdate(NamedTuple):
    """New output of one job for one gateway. An update with `finish` (and timings) or `error` is the last one.

    `is_joined`: the job had been submitted before, so its tokens are not new work. An update with `prompt_logprobs` has
    nothing else that is new.
    """

    job_id: JobId
    first_token_number: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: EndReason | None = None
    error: FastServeError | None = None
    timings: JobTimings | None = None
    is_joined: bool = False
    prompt_logprobs: PromptLogprobs | None = None
