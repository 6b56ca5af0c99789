"""A fixed set of jobs of very different lengths, and what they give through a gateway."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import grpc.aio

from fastserve.v1 import inference_pb2, inference_pb2_grpc

JOB_LIMIT_S = 240.0
MILESTONES_TOKENS = (40, 80)
"""Every long job makes more."""


@dataclass(frozen=True, slots=True)
class ForcedJob:
    """One request with forced length."""

    number: int
    prompt: tuple[int, ...]
    output_tokens: int
    is_greedy: bool
    is_long: bool


@dataclass(frozen=True, slots=True)
class Given:
    """What came back. `job` is the name that the services call it by. `prompt_logprobs`: of every fourth job."""

    job: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: int
    preemptions: int
    top_gaps: tuple[float, ...]
    prompt_logprobs: tuple[float, ...]


def make_jobs(count: int, vocabulary_size: int, seed: int = 11, long_every: int = 5) -> list[ForcedJob]:
    """`count` jobs: mostly short, every fifth (or so) long; even ones greedy, odd ones seeded."""
    draw = random.Random(seed)
    jobs = []
    for number in range(count):
        is_long = number % long_every == 0
        prompt_tokens = draw.randint(40, 90) if is_long else draw.randint(3, 40)
        prompt = tuple(draw.randrange(16, vocabulary_size) for _ in range(prompt_tokens))
        output_tokens = draw.randint(90, 120) if is_long else draw.randint(4, 24)
        jobs.append(ForcedJob(number, prompt, output_tokens, number % 2 == 0, is_long))
    return jobs


GUIDE = inference_pb2.Guide(grammar='start: word (" " word)*\nword: /[a-z]{1,9}/ | "(" start ")"')
"""Words and brackets without an end: the length is forced by min_tokens."""

SEEDED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8},
    {"temperature": 0.8, "guide": GUIDE},
    {"temperature": 0.8, "repetition_penalty": 1.3, "top_p": 0.95},
    {"temperature": 1.2, "frequency_penalty": 0.7, "min_p": 0.02},
    {"temperature": 1.0, "presence_penalty": 1.0, "top_k": 50},
)
"""What the odd jobs sample by, in turn. Penalties and guides follow what a job said before it was preempted."""

GREEDY: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0},
    {"temperature": 0.0, "guide": GUIDE},
)
"""What the even jobs do, in turn."""


SCORED_EVERY = 4


def _how(job: ForcedJob) -> Mapping[str, Any]:
    kinds = GREEDY if job.is_greedy else SEEDED
    return kinds[job.number // 2 % len(kinds)]


def is_guided(job: ForcedJob) -> bool:
    """Whether its output is words and brackets."""
    return "guide" in _how(job)


def request_of(job: ForcedJob, logprobs: bool) -> inference_pb2.GenerateRequest:
    """The job as a request."""
    how = _how(job)
    sampling = inference_pb2.SamplingParams(
        max_tokens=job.output_tokens, min_tokens=job.output_tokens, ignore_eos=True, seed=1000 + job.number, **how
    )
    if logprobs:
        sampling.logprobs = 2
    if job.number % SCORED_EVERY == 0:
        sampling.prompt_logprobs = 1
    return inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=job.prompt), sampling=sampling)


class Progress:
    """Tokens that a job has made."""

    def __init__(self) -> None:
        self._tokens = 0
        self._changed = asyncio.Event()

    def add(self, tokens: int) -> None:
        self._tokens += tokens
        self._changed.set()

    async def reach(self, tokens: int) -> None:
        """Waits until there are so many."""
        while self._tokens < tokens:
            self._changed.clear()
            await self._changed.wait()


async def run_one(
    stub: "inference_pb2_grpc.InferenceServiceAsyncStub",
    job: ForcedJob,
    logprobs: bool = False,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Given:
    """Streams one job to its end."""
    token_ids: list[int] = []
    text: list[str] = []
    gaps: list[float] = []
    of_prompt: list[float] = []
    wanted = 2 * (len(job.prompt) - 1) if job.number % SCORED_EVERY == 0 else 0
    reason = inference_pb2.FINISH_REASON_UNSPECIFIED
    preemptions = 0
    request_id = ""
    async for message in stub.Generate(request_of(job, logprobs), timeout=JOB_LIMIT_S):
        assert message.first_token_number == len(token_ids), "tokens come in order, none lost, none twice"
        token_ids.extend(message.token_ids)
        of_prompt.extend(value for one in message.prompt_logprobs for value in (one.logprob, one.top[0].logprob))
        on_tokens(len(message.token_ids))
        text.append(message.text)
        gaps.extend(entry.top[0].logprob - entry.top[1].logprob for entry in message.logprobs)
        reason = message.finish_reason or reason
        preemptions = message.usage.preemptions
        request_id = message.request_id
    assert len(of_prompt) == wanted, "each of the prompt's tokens is told once"
    return Given(f"{request_id}/0", tuple(token_ids), "".join(text), reason, preemptions, tuple(gaps), tuple(of_prompt))


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


async def run_in_waves(address: str, jobs: list[ForcedJob]) -> list[Given]:
    """The long jobs at once; the others in waves, one whenever a long job has come to a milestone, and so runs."""
    long_ones = [job for job in jobs if job.is_long]
    short_ones = [job for job in jobs if not job.is_long]
    progress = {job: Progress() for job in long_ones}
    waves = list(product(long_ones, MILESTONES_TOKENS))

    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def run_later(job: ForcedJob, after: ForcedJob, tokens: int) -> Given:
            await progress[after].reach(tokens)
            return await run_one(stub, job)

        coming = {job: run_one(stub, job, on_tokens=progress[job].add) for job in long_ones}
        coming |= {job: run_later(job, *wave) for job, wave in zip(short_ones, cycle(waves), strict=False)}
        return list(await asyncio.gather(*(coming[job] for job in jobs)))
