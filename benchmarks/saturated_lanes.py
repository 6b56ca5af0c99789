"""The simplest scheduler that keeps a group of ranks busy: jobs without end, in as many lanes as plans are under way.

A lane is a batch of its own. Its next plan is made when the one before has come back; meanwhile the plans of the other
lanes are in the stages. A job joins a lane when a slot, all blocks that it may ever need and its prompt's share of the
token budget are free, and stays there until it ends.
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
    known_tokens: int
    output_tokens: int = 0

    def entry(self) -> PlanWork:
        if not self.output_tokens:
            spec = JobSpec(len(self.offered.prompt), len(self.offered.prompt), self.offered.sampling)
            return PlanWork(self.job_id, 0, self.known_tokens, self.offered.prompt, spec, None)
        return PlanWork(self.job_id, self.known_tokens - 1, self.known_tokens, (), None, None)


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
        self._admit(self._lanes[lane])
        entries = tuple(job.entry() for job in self._lanes[lane].values())
        self._plan_count += 1
        commands, self._commands = tuple(self._commands), []
        return LanePlan(lane, commands, Plan(epoch, PlanNumber(self._plan_count), entries))

    def take(self, lane: int, tokens: tuple[SampledToken, ...]) -> None:
        """The tokens of the lane's plan."""
        jobs = self._lanes[lane]
        for job_id, _, end_of_sequence in tokens:
            job = jobs[job_id]
            job.output_tokens += 1
            job.known_tokens += 1
            if end_of_sequence or job.output_tokens == job.offered.sampling.max_tokens:
                self._commands.append(ReleaseBlocks(self._number(), job_id))
                self._free.extend(job.blocks)
                del jobs[job_id]

    def _admit(self, jobs: dict[JobId, _LaneJob]) -> None:
        room_tokens = self._max_batch_tokens - len(jobs)
        while len(jobs) < self._max_batch:
            offered = self._next_job
            most_tokens = len(offered.prompt) + offered.sampling.max_tokens - 1
            block_count = -(-most_tokens // self._block_size)
            if block_count > len(self._free) or (len(offered.prompt) > room_tokens and jobs):
                return
            self._job_count += 1
            job_id = JobId(f"{self._job_count}/0")
            blocks = tuple(self._free.pop() for _ in range(block_count))
            self._commands.append(Assign(self._number(), job_id, blocks))
            jobs[job_id] = _LaneJob(offered, job_id, blocks, len(offered.prompt))
            room_tokens -= len(offered.prompt)
            self._next_job = next(self._jobs)

    def _number(self) -> CommandNumber:
        self._command_count += 1
        return CommandNumber(self._command_count)
