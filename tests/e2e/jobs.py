"""A fixed set of jobs of very different lengths, and what they give through a gateway."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio

from fastserve.v1 import inference_pb2, inference_pb2_grpc

JOB_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class ForcedJob:
    """One request with forced length. Every fifth job is long."""

    number: int
    prompt: tuple[int, ...]
    output_tokens: int
    is_greedy: bool

    @property
    def is_long(self) -> bool:
        return self.number % 5 == 0


@dataclass(frozen=True, slots=True)
class Given:
    """What came back."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: int
    preemptions: int
    top_gaps: tuple[float, ...]


def make_jobs(count: int, vocabulary_size: int, seed: int = 11) -> list[ForcedJob]:
    """`count` jobs: mostly short, every fifth long; even ones greedy, odd ones seeded."""
    draw = random.Random(seed)
    jobs = []
    for number in range(count):
        is_long = number % 5 == 0
        prompt_tokens = draw.randint(40, 90) if is_long else draw.randint(3, 40)
        prompt = tuple(draw.randrange(16, vocabulary_size) for _ in range(prompt_tokens))
        output_tokens = draw.randint(90, 120) if is_long else draw.randint(4, 24)
        jobs.append(ForcedJob(number, prompt, output_tokens, number % 2 == 0))
    return jobs


SEEDED: tuple[dict[str, float], ...] = (
    {"temperature": 0.8},
    {"temperature": 0.8, "repetition_penalty": 1.3, "top_p": 0.95},
    {"temperature": 1.2, "frequency_penalty": 0.7, "min_p": 0.02},
    {"temperature": 1.0, "presence_penalty": 1.0, "top_k": 50},
)
"""What the odd jobs sample by, in turn. Penalties count what a job said before it was preempted."""


def request_of(job: ForcedJob, logprobs: bool) -> inference_pb2.GenerateRequest:
    """The job as a request."""
    how: Mapping[str, Any] = {"temperature": 0.0} if job.is_greedy else SEEDED[job.number // 2 % len(SEEDED)]
    sampling = inference_pb2.SamplingParams(
        max_tokens=job.output_tokens, ignore_eos=True, seed=1000 + job.number, **how
    )
    if logprobs:
        sampling.logprobs = 2
    return inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=job.prompt), sampling=sampling)


async def run_one(
    stub: "inference_pb2_grpc.InferenceServiceAsyncStub", job: ForcedJob, logprobs: bool = False
) -> Given:
    """Streams one job to its end."""
    token_ids: list[int] = []
    text: list[str] = []
    gaps: list[float] = []
    reason = inference_pb2.FINISH_REASON_UNSPECIFIED
    preemptions = 0
    async for message in stub.Generate(request_of(job, logprobs), timeout=JOB_LIMIT_S):
        assert message.first_token_number == len(token_ids), "tokens come in order, none lost, none twice"
        token_ids.extend(message.token_ids)
        text.append(message.text)
        gaps.extend(entry.top[0].logprob - entry.top[1].logprob for entry in message.logprobs)
        reason = message.finish_reason or reason
        preemptions = message.usage.preemptions
    return Given(tuple(token_ids), "".join(text), reason, preemptions, tuple(gaps))


async def run_alone(address: str, jobs: list[ForcedJob]) -> list[Given]:
    """One after the other."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return [await run_one(stub, job, logprobs=True) for job in jobs]


async def run_together(address: str, jobs: list[ForcedJob]) -> list[Given]:
    """All at once."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        return list(await asyncio.gather(*(run_one(stub, job) for job in jobs)))
