"""Fills in the defaults: turns what the client asked for into one JobSampling per choice, for scheduler and worker.

A request that gives no seed gets one derived from its id and body. So a repeat of the request, through this gateway or
another, asks for the very same job, while a client that gives no id gets different draws each time, since its id is
random.
"""

import hashlib
from dataclasses import replace

from services.domain.generation import SamplingRequest
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling


def job_id_of(request_id: str, choice: int) -> JobId:
    return JobId(f"{request_id}/{choice}")


def seed_of(request_id: str, body_digest: bytes) -> int:
    """The seed of a request that gives none: 63 bits, never negative."""
    digest = hashlib.sha256(request_id.encode() + b"/" + body_digest).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def resolve(sampling: SamplingRequest, eos_token_ids: tuple[int, ...], seed: int) -> tuple[JobSampling, ...]:
    """One JobSampling per choice, in order, with all defaults filled in. `seed` is used if the request gives none. The
    model's own end is possible under a guide only where the output may end: it is not ignored there. Without output
    nothing can end the job but its prompt.
    """
    own_stops = () if sampling.ignore_eos and sampling.guide is None else eos_token_ids
    first = JobSampling(
        max_tokens=sampling.job_max_tokens,
        seed=seed if sampling.seed is None else sampling.seed,
        min_tokens=sampling.min_tokens or 0,
        temperature=_or(sampling.temperature, 1.0),
        top_p=_or(sampling.top_p, 1.0),
        top_k=max(0, sampling.top_k or 0),
        min_p=_or(sampling.min_p, 0.0),
        presence_penalty=_or(sampling.presence_penalty, 0.0),
        frequency_penalty=_or(sampling.frequency_penalty, 0.0),
        repetition_penalty=_or(sampling.repetition_penalty, 1.0),
        stop_token_ids=tuple(dict.fromkeys(sampling.stop_token_ids + own_stops)),
        logprobs=sampling.logprobs,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
        guide=sampling.guide,
        prompt_logprobs=sampling.prompt_logprobs,
    )
    if not sampling.has_output:
        first = replace(first, temperature=0.0, stop_token_ids=(), logprobs=None, guide=None)
    return (first, *(replace(first, choice=choice) for choice in range(1, sampling.choice_count)))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
