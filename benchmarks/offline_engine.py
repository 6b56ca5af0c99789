"""The engine alone, without services: runs jobs first come, first served. The services are measured against it.

Theory of operation
-------------------
The same `Engine.run` that serves, under the simplest scheduler there is: a job joins when a slot, all blocks it may
ever need and its prompt's share of the token budget are free, and stays until it ends. Nothing is preempted,
nothing moves. An iteration decodes one token of every job under way and prefills the ones that join.
"""

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.domain.errors import InvalidFieldError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.job_sampling import JobSampling
from services.domain.protocol import Assign, ReleaseBlocks
from services.worker.engine.engine import Engine
from services.workloads.workload import TraceJob


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """A prompt and how to sample its continuation."""

    job_id: JobId
    prompt: tuple[int, ...]
    sampling: JobSampling


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """The outputs of a run, and how fast they were made."""

    outputs: Mapping[JobId, list[int]]
    duration_s: float
    busy_s: float
    iterations: int

    @property
    def output_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.outputs.values())

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.duration_s


class _Running:
    """A job under way, as the scheduler sees it."""

    __slots__ = ("blocks", "known_tokens", "offered", "output")

    def __init__(self, offered: OfflineJob, blocks: list[BlockId]) -> None:
        self.offered = offered
        self.blocks = blocks
        self.known_tokens = len(offered.prompt)
        self.output: list[int] = []

    def entry(self) -> PlanWork:
        offered = self.offered
        if not self.output:
            spec = JobSpec(len(offered.prompt), len(offered.prompt), offered.sampling)
            return PlanWork(offered.job_id, 0, self.known_tokens, offered.prompt, spec, None)
        return PlanWork(offered.job_id, self.known_tokens - 1, self.known_tokens, (), None, None)


class OfflineEngine:
    """Runs one list of jobs after the other on an engine that nobody else uses."""

    def __init__(self, engine: Engine, max_batch: int = 16, max_batch_tokens: int = 2048) -> None:
        self._engine = engine
        self._max_batch = max_batch
        self._max_batch_tokens = max_batch_tokens
        self._next_command = 0

    def generate(self, jobs: Sequence[OfflineJob]) -> OfflineRun:
        """Runs all jobs to their end. Raises InvalidFieldError for a job that the pool can never hold."""
        engine = self._engine
        engine.begin_epoch(Epoch(engine.epoch + 1), lambda done: None)
        free = [BlockId(block) for block in reversed(range(engine.pools.device_block_count))]
        waiting = deque(jobs)
        running: dict[JobId, _Running] = {}
        outputs: dict[JobId, list[int]] = {}
        busy_before_s, iterations = engine.counters().busy_s, 0
        started_s = time.perf_counter()
        while waiting or running:
            self._admit(waiting, running, free)
            entries = tuple(job.entry() for job in running.values())
            result = engine.run(Plan(engine.epoch, PlanNumber(iterations), entries)).result
            iterations += 1
            for job_id, token_id, end_of_sequence in result.tokens:
                one = running[job_id]
                one.output.append(token_id)
                one.known_tokens += 1
                if end_of_sequence or len(one.output) == one.offered.sampling.max_tokens:
                    outputs[job_id] = one.output
                    engine.apply(ReleaseBlocks(self._number(), job_id))
                    free.extend(one.blocks)
                    del running[job_id]
        busy_s = engine.counters().busy_s - busy_before_s
        return OfflineRun(outputs, time.perf_counter() - started_s, busy_s, iterations)

    def _admit(self, waiting: deque[OfflineJob], running: dict[JobId, _Running], free: list[BlockId]) -> None:
        room_tokens = self._max_batch_tokens - len(running)
        while waiting and len(running) < self._max_batch:
            offered = waiting[0]
            most_tokens = len(offered.prompt) + offered.sampling.max_tokens - 1
            block_count = -(-most_tokens // self._engine.block_size)
            if block_count > self._engine.pools.device_block_count:
                raise InvalidFieldError("kv-device-tokens", f"job {offered.job_id} needs {most_tokens} tokens")
            # A prompt over the whole budget runs by itself.
            if block_count > len(free) or (len(offered.prompt) > room_tokens and running):
                return
            waiting.popleft()
            blocks = [free.pop() for _ in range(block_count)]
            self._engine.apply(Assign(self._number(), offered.job_id, tuple(blocks)))
            running[offered.job_id] = _Running(offered, blocks)
            room_tokens -= len(offered.prompt)

    def _number(self) -> CommandNumber:
        self._next_command += 1
        return CommandNumber(self._next_command)


def offline_jobs(trace: Sequence[TraceJob], vocabulary_size: int, seed: int = 0) -> list[OfflineJob]:
    """The jobs of a trace, arrival times ignored: seeded random prompts, forced lengths, greedy."""
    numbers = random.Random(seed)
    jobs = []
    for number, job in enumerate(trace):
        prompt = tuple(numbers.randrange(vocabulary_size) for _ in range(job.prompt_tokens))
        sampling = JobSampling(max_tokens=job.output_tokens, seed=number, temperature=0.0)
        jobs.append(OfflineJob(JobId(f"{number}/0"), prompt, sampling))
    return jobs
