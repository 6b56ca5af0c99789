"""What gateway and scheduler tell each other, as values (GatewayLink in scheduler.proto)."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.domain.errors import FastServeError
from services.domain.ids import JobId
from services.domain.sampling import JobSampling
from services.domain.work import TokenLogprob


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class CancelReason(Enum):
    """Why the gateway ends a job."""

    CLIENT_GONE = "client-gone"
    STOP_STRING = "stop-string"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Submission:
    """A job for the scheduler. All its output is asked for: the text of a token depends on those before."""

    job: JobId
    body_digest: bytes
    prompt: "array[int]"
    sampling: JobSampling
    deadline_in_s: float | None


class JobTimings(NamedTuple):
    """Where a job's time went, in seconds, and how often it left the running batch before its end."""

    queue_s: float
    prefill_s: float
    decode_s: float
    preemptions: int


class JobUpdate(NamedTuple):
    """News of one job. The last one has a `finish`, or an `error` where the job was refused or failed."""

    job: JobId
    first_token_number: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob]
    finish: FinishReason | None
    error: FastServeError | None
    timings: JobTimings | None


class Usage(NamedTuple):
    """What a request took: tokens of the prompt (counted once), output tokens and preemptions of all choices."""

    prompt_tokens: int
    completion_tokens: int
    preemptions: int
