"""A small server for stories: the real scheduler and the real KV manager, a worker that keeps books of its blocks, and
links between them, on a virtual clock. Everything that is said is written down.

Each message takes `hop_s`; an iteration takes what the profile says; each direction of the host link carries one copy
at a time. What a turn says to a peer arrives as one batch.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.ids import CommandNumber, Epoch, JobId
from services.domain.protocol import (
    Applied,
    Done,
    IterationResult,
    KvToWorker,
    Offload,
    SampledToken,
    Upload,
    WorkerPools,
    WorkerToKv,
)
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    FromScheduler,
    FromWorker,
    SchedulerConnected,
    ToScheduler,
    ToWorker,
)
from services.kvmanager.policies.kv_config import KvConfig
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Cancel,
    FromKv,
    KvConnected,
    SendPlan,
    Submit,
    Tick,
    ToKv,
    WakeAt,
    WorkerJoined,
)
from services.scheduler.scheduler_config import SchedulerConfig
from tests.fakes.fake_worker_tables import FakeWorkerTables

MOST_STEPS = 100_000
EPOCH = Epoch(1)

Handle = Callable[[Sequence[Any], float], list[Any]]


@dataclass(frozen=True, slots=True)
class StoryJob:
    """A job of a story. It ends by itself after `output_tokens`, says its client nothing of that beforehand."""

    name: str
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    cancel_s: float | None = None
    client_number: int = 0


@dataclass(frozen=True, slots=True)
class StorySetup:
    """What the server is made of, and its jobs."""

    scheduler: SchedulerConfig
    kv: KvConfig
    profile: CostProfile
    device_blocks: int
    host_blocks: int
    jobs: tuple[StoryJob, ...]
    block_size: int = 16
    max_model_len: int = 96
    hop_s: float = 0.0001
    copy_s: float = 0.004
    """Seconds of the copy of one block."""


class Said(NamedTuple):
    """One message: a machine's command, or another message."""

    time_s: float
    sender: str
    receiver: str
    message: Any


def _not_watched(name: str, handle: Handle) -> Handle:
    return handle


class StoryServer:
    """Plays one story. `watch` may put something around the machines' `handle`."""

    def __init__(self, setup: StorySetup, watch: Callable[[str, Handle], Handle] = _not_watched) -> None:
        self.setup = setup
        self.scheduler = Scheduler(setup.scheduler)
        self.manager = KvManager(setup.kv)
        self.worker = FakeWorkerTables(setup.block_size, setup.device_blocks, setup.host_blocks)
        self.said: list[Said] = []
        self.now_s = 0.0
        self._handles = {
            "scheduler": watch("scheduler", self.scheduler.handle),
            "kvmanager": watch("kvmanager", self.manager.handle),
        }
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._jobs = {JobId(job.name): job for job in setup.jobs}
        self._made: dict[JobId, int] = dict.fromkeys(self._jobs, 0)
        self._plans: list[SendPlan] = []
        self._running = False
        self._link_free_s = {Offload: 0.0, Upload: 0.0}
        self._copies: list[CommandNumber] = []

    def play(self) -> list[Said]:
        """Run until nothing is left to happen."""
        setup = self.setup
        pools = WorkerPools(EPOCH, setup.block_size, setup.device_blocks, setup.host_blocks)
        joined = WorkerJoined(EPOCH, setup.device_blocks * setup.block_size, setup.max_model_len, setup.profile)
        self._at(0.0, lambda: self._kvmanager([SchedulerConnected()]))
        self._at(0.0, lambda: self._scheduler([KvConnected()]))
        self._at(0.0, lambda: self._say("worker", "scheduler", [joined], lambda: self._scheduler([joined])))
        self._at(0.0, lambda: self._to_kvmanager([pools]))
        for job in setup.jobs:
            submit = Submit(JobId(job.name), job.prompt_tokens, job.max_tokens, client_number=job.client_number)
            self._at(job.arrival_s, self._client_says(submit))
            if job.cancel_s is not None:
                self._at(job.cancel_s, self._client_says(Cancel(JobId(job.name), EndReason.CANCELLED)))
        for _ in range(MOST_STEPS):
            if not self._due:
                return self.said
            self.now_s, _, happen = heapq.heappop(self._due)
            happen()
        raise AssertionError("the story does not end")

    # --- links -------------------------------------------------------------------------------------------------------

    def _at(self, time_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._numbers), happen))

    def _say(self, sender: str, receiver: str, messages: Sequence[Any], arrive: Callable[[], None]) -> None:
        self.said.extend(Said(self.now_s, sender, receiver, message) for message in messages)
        self._at(self.now_s + self.setup.hop_s, arrive)

    def _client_says(self, message: Submit | Cancel) -> Callable[[], None]:
        return lambda: self._say("client", "scheduler", [message], lambda: self._scheduler([message]))

    # --- machines ----------------------------------------------------------------------------------------------------

    def _scheduler(self, events: Sequence[Any]) -> None:
        """A turn of the scheduler."""
        to_kv: list[ToKv] = []
        for command in self._handles["scheduler"](events, self.now_s):
            match command:
                case ToKv():
                    self.said.append(Said(self.now_s, "scheduler", "kvmanager", command.message))
                    to_kv.append(command)
                case SendPlan():
                    self._say("scheduler", "worker", [command], self._plan_arrives(command))
                case WakeAt(time_s):
                    self._at(time_s, lambda: self._scheduler([Tick()]))
                case _:
                    self.said.append(Said(self.now_s, "scheduler", "client", command))
        if to_kv:
            heard = [FromScheduler(command.epoch, command.message) for command in to_kv]
            self._at(self.now_s + self.setup.hop_s, lambda: self._kvmanager(heard))
        self.scheduler.check()

    def _kvmanager(self, events: Sequence[Any]) -> None:
        """A turn of the KV manager."""
        commands = self._handles["kvmanager"](events, self.now_s)
        for command in commands:
            receiver = "scheduler" if isinstance(command, ToScheduler) else "worker"
            self.said.append(Said(self.now_s, "kvmanager", receiver, command.message))
        told = [FromKv(command.epoch, command.message) for command in commands if isinstance(command, ToScheduler)]
        if told:
            self._at(self.now_s + self.setup.hop_s, lambda: self._scheduler(told))
        orders = tuple(command.message for command in commands if isinstance(command, ToWorker))
        if orders:
            self._at(self.now_s + self.setup.hop_s, lambda: self._commands_arrive(orders))
        self.manager.check()

    # --- the worker --------------------------------------------------------------------------------------------------

    def _to_kvmanager(self, messages: Sequence[WorkerToKv]) -> None:
        heard = [FromWorker(EPOCH, message) for message in messages]
        self._say("worker", "kvmanager", messages, lambda: self._kvmanager(heard))

    def _commands_arrive(self, commands: tuple[KvToWorker, ...]) -> None:
        begun = self.worker.apply(commands)
        self._copies.extend(CommandNumber(number) for number in begun)
        for command in commands:
            if isinstance(command, Offload | Upload) and command.command_number in begun:
                starts_s = max(self.now_s, self._link_free_s[type(command)])
                ends_s = starts_s + len(command.moves) * self.setup.copy_s
                self._link_free_s[type(command)] = ends_s
                self._at(ends_s, self._copy_ends(command.command_number))
        self._to_kvmanager([Applied(command.command_number) for command in commands])

    def _copy_ends(self, command_number: CommandNumber) -> Callable[[], None]:
        def end() -> None:
            at = self._copies.index(command_number)
            self.worker.end_copy(at)
            del self._copies[at]
            self._to_kvmanager([Done(command_number)])
            self._start_plan()

        return end

    def _plan_arrives(self, plan: SendPlan) -> Callable[[], None]:
        def arrive() -> None:
            self._plans.append(plan)
            self._start_plan()

        return arrive

    def _start_plan(self) -> None:
        """Run plans in order, each once no upload of its jobs is unfinished."""
        if self._running or not self._plans or not self.worker.can_start(self._plans[0].entries):
            return
        self._running = True
        plan = self._plans.pop(0)
        self.worker.run(plan.entries)
        took_s = max(self._entry_s(entry.from_token, entry.to_token) for entry in plan.entries)
        self._at(self.now_s + took_s, lambda: self._iteration_ends(plan, took_s))

    def _entry_s(self, from_token: int, to_token: int) -> float:
        profile = self.setup.profile
        tokens = to_token - from_token
        return profile.prefill_s(tokens) if tokens > 1 else profile.decode_s(1, to_token)

    def _iteration_ends(self, plan: SendPlan, took_s: float) -> None:
        tokens: list[SampledToken] = []
        for entry in plan.entries:
            job = self._jobs[entry.job_id]
            if entry.to_token == job.prompt_tokens + self._made[entry.job_id]:
                self._made[entry.job_id] += 1
                ends = self._made[entry.job_id] == job.output_tokens
                tokens.append(SampledToken(entry.job_id, 1000 + self._made[entry.job_id], ends))
        result = IterationResult(EPOCH, plan.plan_number, tuple(tokens), (), took_s)
        self._running = False
        self._say("worker", "scheduler", [result], lambda: self._scheduler([result]))
        self._start_plan()
