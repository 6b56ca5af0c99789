"""The simplest scheduler that keeps a group of ranks busy: jobs without end, in as many lanes as plans are under way.

A lane is a batch of its own. Its next plan is made when the one before has come back; meanwhile the plans of the other
lanes are in the stages. A job joins a lane when a slot and all blocks that it may ever need are free, and stays there
until it ends. A plan decodes a token of every job under way; what is left of its token budget goes to prompts, in
chunks, the first that came first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.offline_engine import OfflineJob
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import JobSpec, Plan, PlanWork
from services.domain.protocol import Assign, KvToWorker, ReleaseBlocks, SampledToken


@dataclass(frozen=True, slots=True)
class LanePlan:
    """A lane's next plan, and the commands that come before it."""

    lane: int
    commands: tuple[KvToWorker, ...]
    plan: Plan


@dataclass(slots=True)
class _LaneJob:
    offered: OfflineJob
    job_id: JobId
    blocks: tuple[BlockId, ...]
    computed_tokens: int = 0
    output_tokens: int = 0

    def entry(self, most_tokens: int) -> PlanWork:
        """The next entry, of at most so many tokens of a prompt."""
        first, prompt = self.computed_tokens, self.offered.prompt
        if self.output_tokens:
            self.computed_tokens += 1
            return PlanWork(self.job_id, first, first + 1, (), None, None)
        self.computed_tokens = stop = min(len(prompt), first + most_tokens)
        spec = JobSpec(len(prompt), len(prompt), self.offered.sampling) if first == 0 else None
        return PlanWork(self.job_id, first, stop, prompt[first:stop], spec, None)


class SaturatedLanes:
    """`jobs` never ends; what it offers is renamed, so that it may repeat itself."""

    def __init__(
        self,
        jobs: Iterator[OfflineJob],
        lane_count: int,
        max_batch: int,
        max_batch_tokens: int,
        block_count: int,
        block_size: int,
    ) -> None:
        self._jobs = jobs
        self._next_job = next(jobs)
        self._max_batch, self._max_batch_tokens = max_batch, max_batch_tokens
        self._block_size = block_size
        self._free = [BlockId(block) for block in reversed(range(block_count))]
        self._lanes: list[dict[JobId, _LaneJob]] = [{} for _ in range(lane_count)]
        self._commands: list[KvToWorker] = []
        self._command_count = self._plan_count = self._job_count = 0

    def next_plan(self, lane: int, epoch: Epoch) -> LanePlan:
        """The lane's plan before it must be back."""
        jobs = self._lanes[lane]
        self._admit(jobs)
        entries = [job.entry(1) for job in jobs.values() if job.output_tokens]
        room_tokens = self._max_batch_tokens - len(entries)
        for job in jobs.values():
            if not job.output_tokens and room_tokens > 0:
                entries.append(job.entry(room_tokens))
                room_tokens -= entries[-1].to_token - entries[-1].from_token
        self._plan_count += 1
        commands, self._commands = tuple(self._commands), []
        return LanePlan(lane, commands, Plan(epoch, PlanNumber(self._plan_count), tuple(entries)))

    def take(self, lane: int, tokens: tuple[SampledToken, ...]) -> None:
        """The tokens of the lane's plan."""
        jobs = self._lanes[lane]
        for job_id, _, end_of_sequence in tokens:
            job = jobs[job_id]
            job.output_tokens += 1
            if end_of_sequence or job.output_tokens == job.offered.sampling.max_tokens:
                self._commands.append(ReleaseBlocks(self._number(), job_id))
                self._free.extend(job.blocks)
                del jobs[job_id]

    def _admit(self, jobs: dict[JobId, _LaneJob]) -> None:
        while len(jobs) < self._max_batch:
            offered = self._next_job
            most_tokens = len(offered.prompt) + offered.sampling.max_tokens - 1
            block_count = -(-most_tokens // self._block_size)
            if block_count > len(self._free):
                return
            self._job_count += 1
            job_id = JobId(f"{self._job_count}/0")
            blocks = tuple(self._free.pop() for _ in range(block_count))
            self._commands.append(Assign(self._number(), job_id, blocks))
            jobs[job_id] = _LaneJob(offered, job_id, blocks)
            self._next_job = next(self._jobs)

    def _number(self) -> CommandNumber:
        self._command_count += 1
        return CommandNumber(self._command_count)
