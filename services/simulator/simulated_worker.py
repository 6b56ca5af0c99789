"""A model of a worker group: pipeline stages, each with its compute and its link to host memory.

Plans run in the order of their arrival. A stage takes its share of the iteration's time according to the cost profile.
It starts a plan once it has ended the previous plan, the hidden states of the previous stage have come, and no upload
of a job in it is unfinished there (PROTOCOL 17); that last wait is `stall_s`. The first stage also needs the last
stage's token of a job that decodes, which has a way of its own. Commands of the KV manager take effect as soon as they
arrive, whatever is running; their copies run in parallel with compute.

Later events can't change when a plan runs: its jobs are resident, so their uploads are under way or done, and a job in
an unfinished plan is not taken away (PROTOCOL 3, 4). So all times of a plan are known when it arrives, and only one
message has to be posted for it, its result.

An entry of a job that ended in an earlier plan is skipped. A prefill with a limit runs on its own and is cut when it
takes longer; nothing of it is kept. A breach of PROTOCOL raises ProtocolError, as in a real worker: a plan beyond a
table, a plan that reads missing KV, a copy that leaves valid tokens behind.
"""

from collections.abc import Callable, Sequence

from services.domain.copying import CopyDirection
from services.domain.cost import CostProfile
from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch, JobId
from services.domain.protocol import (
    Applied,
    Assign,
    Done,
    IterationResult,
    KvToWorker,
    Offload,
    PlanEntry,
    SampledToken,
    Upload,
    WorkerToKv,
)
from services.domain.records import records
from services.scheduler.machine.scheduler_events import SendPlan
from services.simulator.host_link import HostLink
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.time_spans import TimeSpan

TOKEN = 1
"""The token id that every job samples."""


class SimulatedProgress:
    """A job as the worker knows it. The KV of `valid_tokens` tokens is in `device_blocks` blocks or on the host."""

    __slots__ = (
        "device_blocks",
        "ended",
        "executing_s",
        "known_tokens",
        "last_tokens",
        "running",
        "stops",
        "token_s",
        "uploaded_s",
        "uploading_s",
        "valid_tokens",
    )

    def __init__(self, job: SimulatedJob) -> None:
        self.known_tokens = job.prompt_tokens
        self.last_tokens = job.prompt_tokens + job.output_tokens
        """The number of its tokens at its end."""
        self.stops = job.output_tokens < job.most_output_tokens
        """Whether its last token is a stop token."""
        self.valid_tokens = 0
        self.device_blocks = 0
        self.uploaded_s = 0.0
        """When its last upload ends on every stage."""
        self.token_s = 0.0
        """When the first stage has its newest token."""
        self.running = False
        """Whether a plan has named it since it received blocks."""
        self.ended = False
        self.executing_s = 0.0
        self.uploading_s = 0.0


class SimulatedIteration:
    """The work of a plan: how long it takes, and what it has to wait for."""

    __slots__ = ("cut", "duration_s", "jobs", "prefill_s", "rows", "sampled", "token_s", "tokens", "uploaded_s")

    def __init__(self) -> None:
        self.duration_s = 0.0
        self.prefill_s = 0.0
        """The part of the duration that its prefills take. Like `rows`, known where stages differ."""
        self.rows = 0
        self.uploaded_s = 0.0
        self.token_s = 0.0
        self.jobs: list[SimulatedProgress] = []
        self.sampled: list[SimulatedProgress] = []
        self.tokens: tuple[SampledToken, ...] = ()
        self.cut: list[JobId] = []


class SimulatedWorker:
    """The worker of one group. `post_result` and `post_answers` send a message at a given time."""

    def __init__(
        self,
        setup: ServerSetup,
        epoch: Epoch,
        post_result: Callable[[float, IterationResult], None],
        post_answers: Callable[[float, Sequence[WorkerToKv]], None],
    ) -> None:
        self._cost: CostProfile = setup.cost
        self._slowdown = setup.slowdown
        self._overhead_s = setup.overhead_s
        self._block_size = setup.block_size
        self._stages = range(setup.stages)
        self._pipeline = setup.pipeline
        self._token_way_s = setup.hop_s if setup.pipeline is not None and setup.stages > 1 else 0.0
        self._epoch = epoch
        self._post_result = post_result
        self._post_answers = post_answers
        self._free_s = [0.0] * setup.stages
        """When each stage will have ended all its plans."""
        self._running_jobs = 0
        """Number of jobs that were in a plan and can still make tokens."""
        self.link = HostLink(setup.link, setup.stage_block_bytes)
        self.jobs: dict[JobId, SimulatedProgress] = {}
        self.compute: list[TimeSpan] = []
        """When the first stage computed."""
        self.busy_s = self.stall_s = self.plan_wait_s = 0.0

    def expect(self, job: SimulatedJob, known_tokens: int | None = None) -> None:
        """The job may be named from now on. One that moved here has `known_tokens` tokens already; what is known of an
        earlier stay is kept until its blocks are released.
        """
        progress = self.jobs.setdefault(JobId(job.job_id), SimulatedProgress(job))
        if known_tokens is not None:
            progress.known_tokens = known_tokens

    # --- plans -------------------------------------------------------------------------------------------------------

    def run(self, plan: SendPlan, now_s: float) -> None:
        """Take a plan that arrived."""
        if now_s > self._free_s[0] and self._running_jobs:
            self.plan_wait_s += now_s - self._free_s[0]
        work = self._work(plan)
        stage_s, way_s = self._stage_s(work)
        begin_s = ready_s = end_s = max(now_s, work.token_s)
        for stage in self._stages:
            ready_s = max(ready_s, self._free_s[stage])
            if work.uploaded_s > ready_s:
                self.stall_s += (work.uploaded_s - ready_s) / len(self._stages)
                ready_s = work.uploaded_s
            if stage == 0:
                begin_s = ready_s
            self._free_s[stage] = end_s = ready_s + stage_s[stage]
            ready_s = end_s + way_s
        self._ran(work, begin_s, begin_s + stage_s[0], end_s)
        result = IterationResult(self._epoch, plan.plan_number, work.tokens, tuple(work.cut), work.duration_s)
        self._post_result(end_s + self._token_way_s, result)

    def _stage_s(self, work: SimulatedIteration) -> tuple[Sequence[float], float]:
        """Seconds of the iteration in each stage, and on the way between two of them. The overhead is added to them
        and to the iteration's duration.
        """
        pipeline, stage_count = self._pipeline, len(self._stages)
        overhead_s = self._overhead_s if work.jobs else 0.0
        if pipeline is None:
            shares_s, way_s = (work.duration_s / stage_count,) * stage_count, 0.0
        else:
            shares_s = pipeline.stage_s(work.prefill_s, work.duration_s - work.prefill_s)
            way_s = pipeline.way_s(work.rows)
        if overhead_s:
            shares_s = tuple(share_s + overhead_s for share_s in shares_s)
            work.duration_s += overhead_s * stage_count
        return shares_s, way_s

    def _ran(self, work: SimulatedIteration, begin_s: float, first_stage_end_s: float, end_s: float) -> None:
        self.busy_s += work.duration_s / len(self._stages)
        if self.compute and self.compute[-1].end_s == begin_s:
            begin_first_s = self.compute.pop().begin_s
            self.compute.append(TimeSpan(begin_first_s, first_stage_end_s))
        else:
            self.compute.append(TimeSpan(begin_s, first_stage_end_s))
        took_s = end_s - begin_s
        for job in work.jobs:
            job.executing_s += took_s
        for job in work.sampled:
            job.token_s = end_s + self._token_way_s

    def _work(self, plan: SendPlan) -> SimulatedIteration:
        """Check and carry out every entry, then compute the duration."""
        work = SimulatedIteration()
        limits_s = dict(plan.cut_after_s) if plan.cut_after_s else {}
        prefills: list[tuple[int, int]] = []
        tokens: list[tuple[JobId, int, bool]] = []
        decodes = context_tokens = 0
        jobs, block_size = self.jobs, self._block_size
        for entry in plan.entries:
            job_id, from_token, to_token = entry
            job = jobs.get(job_id)
            if (
                job is None
                or from_token == 0
                or job.ended
                or from_token != job.valid_tokens
                or not from_token < to_token <= job.known_tokens
                or to_token > job.device_blocks * block_size
            ):  # most entries are valid decodes, which need no further checks
                job = self._checked(plan, entry)
                if job is None:
                    continue
            if job.uploaded_s > work.uploaded_s:
                work.uploaded_s = job.uploaded_s
            work.jobs.append(job)
            if to_token - from_token == 1:
                decodes += 1
                context_tokens += to_token
                if job.token_s > work.token_s:
                    work.token_s = job.token_s
            elif job_id in limits_s:
                if self._is_cut(work, job, entry, limits_s[job_id]):
                    continue
            else:
                prefills.append((from_token, to_token))
            job.valid_tokens = to_token
            if to_token == job.known_tokens:
                job.known_tokens += 1
                if job.known_tokens == job.last_tokens:
                    job.ended = True
                    self._running_jobs -= 1
                work.sampled.append(job)
                tokens.append((job_id, TOKEN, job.ended and job.stops))
        work.tokens = tuple(records(SampledToken, tokens))
        if decodes or prefills:
            own_s = self._cost.iteration_s(prefills, decodes, context_tokens / decodes if decodes else 0.0)
            work.duration_s += own_s * self._slowdown
            if self._pipeline is not None:
                work.rows += decodes + sum(to_token - from_token for from_token, to_token in prefills)
                prefills_s = self._cost.iteration_s(prefills, 0, 0.0) if prefills else 0.0
                work.prefill_s += prefills_s * self._slowdown
        return work

    def _is_cut(self, work: SimulatedIteration, job: SimulatedProgress, entry: PlanEntry, limit_s: float) -> bool:
        """A prefill with a limit runs on its own."""
        own_s = self._cost.iteration_s([(entry.from_token, entry.to_token)], 0, 0.0) * self._slowdown
        work.duration_s += min(own_s, limit_s)
        work.prefill_s += min(own_s, limit_s)
        work.rows += entry.to_token - entry.from_token
        if own_s <= limit_s:
            return False
        work.cut.append(entry.job_id)
        job.valid_tokens = entry.from_token
        return True

    def _checked(self, plan: SendPlan, entry: PlanEntry) -> SimulatedProgress | None:
        """The entry's job; None if the entry must be skipped. Raises ProtocolError for an invalid entry."""
        job = self.jobs.get(entry.job_id)
        if job is None:
            raise ProtocolError(f"plan {plan.plan_number} names job {entry.job_id}, which never arrived")
        valid_tokens = job.valid_tokens
        if entry.from_token == 0:
            valid_tokens = 0
            if not job.running:
                job.running = True
                self._running_jobs += 1
        elif job.ended:
            return None
        if (
            entry.from_token != valid_tokens
            or not entry.from_token < entry.to_token <= job.known_tokens
            or entry.to_token > job.device_blocks * self._block_size
        ):
            raise ProtocolError(
                f"plan {plan.plan_number} computes {entry}, but the job has {job.known_tokens} tokens, of which "
                f"{valid_tokens} are valid, in {job.device_blocks} blocks of {self._block_size} tokens"
            )
        return job

    # --- commands ----------------------------------------------------------------------------------------------------

    def apply(self, commands: Sequence[KvToWorker], now_s: float) -> None:
        """Take a batch of commands from the KV manager."""
        applied: list[WorkerToKv] = []
        ends: list[tuple[float, CommandNumber]] = []
        for command in commands:
            job = self.jobs[command.job_id]
            if isinstance(command, Assign):
                job.device_blocks += len(command.device_blocks)
            elif isinstance(command, Offload):
                self._covers(job, command)
                job.device_blocks = 0
                ends.append((self.link.copy(CopyDirection.OFFLOAD, len(command.moves), now_s), command.command_number))
            elif isinstance(command, Upload):
                self._covers(job, command)
                job.device_blocks = len(command.device_blocks)
                job.uploaded_s = self.link.copy(CopyDirection.UPLOAD, len(command.moves), now_s)
                job.uploading_s += job.uploaded_s - now_s
                ends.append((job.uploaded_s, command.command_number))
            else:
                self._release(job)
            applied.append(Applied(command.command_number))
        self._post_answers(now_s, applied)
        for end_s, number in ends:
            self._post_answers(end_s, [Done(number)])

    def _covers(self, job: SimulatedProgress, command: Offload | Upload) -> None:
        """Check that a copy covers all valid tokens and no others, and at least one."""
        if (
            not command.moves
            or command.valid_tokens > job.valid_tokens
            or len(command.moves) * self._block_size < command.valid_tokens
        ):
            raise ProtocolError(
                f"command {command.command_number} moves {command.valid_tokens} tokens of job {command.job_id} in "
                f"{len(command.moves)} blocks, but {job.valid_tokens} are valid"
            )
        job.valid_tokens = command.valid_tokens

    def _release(self, job: SimulatedProgress) -> None:
        if job.running and not job.ended:
            self._running_jobs -= 1
        job.running = False
        job.device_blocks = job.valid_tokens = 0
