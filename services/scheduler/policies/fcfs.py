"""Policies without quanta: the baselines that PAPER 2 compares with.

- fcfs: by arrival, run to completion (Orca's order; also vLLM's).
- fixed-priority: by prompt length, shortest first, never changed.
- srpt: by the time still to run, shortest first: the oracle. It takes max_tokens for the length.
- static: request-level batches (FasterTransformer). A batch is formed of the first jobs waiting, runs until its last
  job ended, and lets nobody in meanwhile. Its jobs stand in level 0, all others in level 1, which is closed. With
  pipeline stages there are as many batches, which take turns, and each of them is followed by another when it ends.
"""

from collections import deque
from collections.abc import Sequence
from typing import assert_never

from services.domain.cost import CostProfile
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.mlfq import Mlfq, SchedulingPolicy
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig


class Fcfs:
    """First come, first served. What it answers to the other hooks holds for every policy without quanta."""

    quanta_s: tuple[float, ...] = ()
    closed_level: int | None = None

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Times play no part."""

    def join(self, job: Job) -> Rank:
        """By arrival."""
        return Rank(0, 0.0, job.arrival_number)

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """A job keeps its place."""
        return None

    def cut(self, job: Job) -> Rank:
        """Nothing is ever cut; a worker that says so changes no place."""
        return job.place

    def cut_after_s(self, job: Job, tokens: int) -> float | None:
        """Nothing is cut."""
        return None

    def promote(self, job: Job) -> Rank | None:
        """Nobody is promoted."""
        return None

    def leave(self, job: Job) -> None:
        """Nothing is held."""

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """Nobody moves on account of others."""
        return ()


class FixedPriority(Fcfs):
    """By prompt length."""

    def join(self, job: Job) -> Rank:
        """The shorter prompt runs sooner."""
        return Rank(0, float(job.prompt_tokens), job.arrival_number)


class Srpt(Fcfs):
    """By remaining time: what is left of the prefill, and one decode of a lone job for each output token after the
    next.
    """

    def __init__(self) -> None:
        self._profile: CostProfile | None = None
        self._decode_s = 0.0

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """Seconds of prefill and decode."""
        self._profile = profile
        self._decode_s = profile.decode_s(1, 1)

    def join(self, job: Job) -> Rank:
        """By the whole time."""
        return self._rank(job)

    def ran(self, job: Job, service_s: float) -> Rank | None:
        """By what is left now."""
        return self._rank(job)

    def _rank(self, job: Job) -> Rank:
        assert self._profile is not None, "calibrate comes first"
        decodes = job.max_tokens - job.output_tokens
        remaining_s = decodes * self._decode_s
        computed = job.finished_tokens
        if job.known_tokens - computed > 1:
            done_s = self._profile.prefill_s(computed) if computed else 0.0
            remaining_s += self._profile.prefill_s(job.known_tokens) - done_s - self._decode_s
        return Rank(0, remaining_s, job.arrival_number)


class Static(Fcfs):
    """Request-level batches."""

    def __init__(self, max_batch: int) -> None:
        self.closed_level = 1
        self._max_batch = max_batch
        self._stage_count = 1
        self._batches: list[set[int]] = []
        """Arrival numbers of the jobs of each that did not end yet."""
        self._batch_of: dict[int, set[int]] = {}
        self._waiting: deque[Job] = deque()
        self._left: set[int] = set()

    def calibrate(self, profile: CostProfile, max_model_len: int, stage_count: int = 1) -> None:
        """As many batches as stages."""
        self._stage_count = stage_count

    def join(self, job: Job) -> Rank:
        """Waits for the next batch."""
        self._waiting.append(job)
        return Rank(1, 0.0, job.arrival_number)

    def leave(self, job: Job) -> None:
        """Its slot stays empty until the batch ends; a job that was waiting is passed over when its turn comes."""
        batch = self._batch_of.pop(job.arrival_number, None)
        if batch is None:
            self._left.add(job.arrival_number)
            return
        batch.remove(job.arrival_number)
        if not batch:
            self._batches.remove(batch)

    def settle(self) -> Sequence[tuple[Job, Rank]]:
        """The next batch, when one ended."""
        begun: list[tuple[Job, Rank]] = []
        while self._waiting and len(self._batches) < self._stage_count:
            jobs = self._next_jobs()
            if not jobs:
                break
            batch = {job.arrival_number for job in jobs}
            self._batches.append(batch)
            self._batch_of.update(dict.fromkeys(batch, batch))
            begun += [(job, Rank(0, 0.0, job.arrival_number)) for job in jobs]
        return begun

    def _next_jobs(self) -> list[Job]:
        jobs: list[Job] = []
        while self._waiting and len(jobs) < self._max_batch:
            job = self._waiting.popleft()
            if job.arrival_number in self._left:
                self._left.remove(job.arrival_number)
            else:
                jobs.append(job)
        return jobs


def make_policy(config: SchedulerConfig) -> SchedulingPolicy:
    """The policy that the configuration names."""
    match config.policy:
        case PolicyName.FCFS:
            return Fcfs()
        case PolicyName.FIXED_PRIORITY:
            return FixedPriority()
        case PolicyName.SRPT:
            return Srpt()
        case PolicyName.STATIC:
            return Static(config.max_batch)
        case PolicyName.MLFQ | PolicyName.MLFQ_KILL | PolicyName.SKIP_JOIN_MLFQ as name:
            return Mlfq(
                quantum_ratio=config.quantum_ratio,
                demotion_levels=config.demotion_levels,
                skip_join=name is PolicyName.SKIP_JOIN_MLFQ,
                kill=name is PolicyName.MLFQ_KILL,
            )
        case unreachable:
            assert_never(unreachable)
