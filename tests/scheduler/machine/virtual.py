"""A scheduler on a virtual clock, with a KV manager that has room for everybody and a worker that takes the time the
cost model says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.protocol import IterationResult, Resident, SampledToken, SchedulerToKv
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    Emit,
    End,
    Event,
    FromKv,
    KvConnected,
    Reject,
    SendPlan,
    Submit,
    ToKv,
    WorkerJoined,
)
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.machine.fake_kv import FakeKv

EPOCH = Epoch(7)
TOKEN = 5
"""The token that the worker samples, always."""

FLAT = CostProfile((PrefillCost(1, 0.25),), (DecodeCost(1, 1, 0.25),))
"""Every iteration takes 0.25 s; quanta 0.25 and 0.5."""


def profile(prefill_s_per_token: float = 0.001, decode_s: float = 0.2) -> CostProfile:
    """Prefill in proportion to its tokens, decode flat."""
    prefill = (PrefillCost(1, prefill_s_per_token), PrefillCost(10_000, 10_000 * prefill_s_per_token))
    return CostProfile(prefill, (DecodeCost(1, 1, decode_s), DecodeCost(64, 1, decode_s)))


def joined(
    cost: CostProfile | None = None, *, epoch: int = EPOCH, pool_tokens: int = 1_000_000, max_model_len: int = 4000
) -> WorkerJoined:
    """A worker joins."""
    return WorkerJoined(Epoch(epoch), pool_tokens, max_model_len, cost or profile())


@dataclass
class Machine:
    """The bare machine, checked after every turn, with its commands sorted out."""

    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config)
        self.commands: list[Command] = []
        self.turns: list[tuple[tuple[Event, ...], float, list[Command]]] = []
        """What was recorded: events, time, commands."""

    def turn(self, *events: Event, at_s: float | None = None) -> list[Command]:
        """One turn; its commands are returned and kept."""
        self.now_s = self.now_s if at_s is None else at_s
        commands = self.scheduler.handle(events, self.now_s)
        self.scheduler.check()
        self.turns.append((events, self.now_s, commands))
        self.commands += commands
        return commands

    def start(self, cost: CostProfile | None = None, **limits: int) -> list[Command]:
        """Worker and KV manager are there."""
        return self.turn(joined(cost, **limits), KvConnected())

    def result(
        self,
        plan: SendPlan,
        *,
        duration_s: float = 0.2,
        ends: Iterable[str] = (),
        cut: Sequence[str] = (),
        silent: Iterable[str] = (),
    ) -> IterationResult:
        """The result of a plan. `ends`: jobs whose token ends them. `silent`: jobs whose entry samples nothing."""
        tokens = tuple(
            SampledToken(entry.job_id, TOKEN, entry.job_id in set(ends))
            for entry in plan.entries
            if entry.job_id not in cut and entry.job_id not in set(silent)
        )
        return IterationResult(plan.epoch, plan.plan_number, tokens, tuple(JobId(job) for job in cut), duration_s)


def plans(commands: Iterable[Command]) -> list[SendPlan]:
    """The plans among commands."""
    return [command for command in commands if isinstance(command, SendPlan)]


def entries(plan: SendPlan) -> list[tuple[str, int, int]]:
    """A plan as tuples."""
    return [(entry.job_id, entry.from_token, entry.to_token) for entry in plan.entries]


def told(commands: Iterable[Command]) -> list[SchedulerToKv]:
    """Messages to the KV manager among commands."""
    return [command.message for command in commands if isinstance(command, ToKv)]


def ended(commands: Iterable[Command]) -> list[tuple[str, EndReason]]:
    """Ends among commands."""
    return [(command.job_id, command.reason) for command in commands if isinstance(command, End)]


def rejected(commands: Iterable[Command]) -> list[Reject]:
    """Refusals among commands."""
    return [command for command in commands if isinstance(command, Reject)]


def machine_with(jobs: list[tuple[str, int, int]], cost: CostProfile | None = None, **knobs: object) -> Machine:
    """A machine with these jobs (name, prompt tokens, output tokens) resident."""
    config = SchedulerConfig(**({"policy": PolicyName.FCFS} | knobs))  # type: ignore[arg-type]
    machine = Machine(config)
    machine.start(cost)
    submits = [Submit(JobId(name), prompt, output) for name, prompt, output in jobs]
    residents = [FromKv(EPOCH, Resident(JobId(name), prompt + output, 0)) for name, prompt, output in jobs]
    machine.turn(*submits, *residents)
    return machine


def shape(plan: SendPlan) -> dict[str, tuple[int, int]]:
    """A plan's entries by job."""
    return {entry.job_id: (entry.from_token, entry.to_token) for entry in plan.entries}


@dataclass(frozen=True)
class Arrival:
    """A job of a trace."""

    job: str
    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0


class VirtualWorker:
    """Runs plans one after another, each for the sum of its prefills and one decode. Cuts a prefill that has a limit
    below its time.
    """

    def __init__(self, cost: CostProfile) -> None:
        self._cost = cost
        self.known: dict[str, int] = {}

    def run(self, plan: SendPlan) -> IterationResult:
        """The iteration's result, with its duration."""
        limits = dict(plan.cut_after_s)
        duration_s = 0.0
        cut: list[JobId] = []
        tokens: list[SampledToken] = []
        for entry in plan.entries:
            count = entry.to_token - entry.from_token
            before_s = self._cost.prefill_s(entry.from_token) if entry.from_token else 0.0
            prefill_s = self._cost.prefill_s(entry.to_token) - before_s
            if count > 1 and prefill_s > limits.get(entry.job_id, prefill_s):
                duration_s += limits[entry.job_id]
                cut.append(entry.job_id)
                continue
            duration_s += prefill_s if count > 1 else 0.0
            if entry.to_token == self.known[entry.job_id]:
                self.known[entry.job_id] += 1
                tokens.append(SampledToken(entry.job_id, TOKEN, False))
        if any(entry.to_token - entry.from_token == 1 for entry in plan.entries):
            duration_s += self._cost.decode_s(len(plan.entries), 1)
        return IterationResult(plan.epoch, plan.plan_number, tuple(tokens), tuple(cut), duration_s)


@dataclass
class Run:
    """What came of a trace."""

    finished_s: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    order: list[list[str]] = field(default_factory=list)
    """Jobs of every iteration."""

    @property
    def mean_s(self) -> float:
        """Mean finishing time."""
        return sum(self.finished_s.values()) / len(self.finished_s)


class Replay:
    """Serves a trace on the virtual clock."""

    def __init__(self, config: SchedulerConfig, arrivals: Sequence[Arrival], cost: CostProfile) -> None:
        self.machine = Machine(config)
        self.run = Run()
        self._worker = VirtualWorker(cost)
        self._kv = FakeKv()
        self._waiting = sorted(arrivals, key=lambda arrival: arrival.arrival_s)
        self._queued: list[SendPlan] = []
        self._feed([joined(cost), KvConnected()], 0.0)

    def iterate(self) -> bool:
        """Run one iteration, or go on to the next arrival. False: all is served."""
        self._arrive(self.machine.now_s)
        if not self._queued:
            if self._waiting:
                self._arrive(self._waiting[0].arrival_s)
            return bool(self._queued)
        plan = self._queued.pop(0)
        self.run.order.append([entry.job_id for entry in plan.entries])
        result = self._worker.run(plan)
        end_s = self.machine.now_s + result.duration_s
        while self._waiting and self._waiting[0].arrival_s < end_s:
            self._arrive(self._waiting[0].arrival_s)
        self._feed([result], end_s)
        return True

    def _arrive(self, now_s: float) -> None:
        due = [arrival for arrival in self._waiting if arrival.arrival_s <= now_s]
        if due:
            self._waiting = self._waiting[len(due) :]
            self._worker.known |= {arrival.job: arrival.prompt_tokens for arrival in due}
            self._feed([Submit(JobId(a.job), a.prompt_tokens, a.output_tokens) for a in due], now_s)

    def _feed(self, events: Sequence[Event], now_s: float) -> None:
        while events:
            commands = self.machine.turn(*events, at_s=now_s)
            self._queued += plans(commands)
            for command in commands:
                if isinstance(command, End):
                    self.run.finished_s[command.job_id] = now_s
                elif isinstance(command, Emit) and command.token_number == 0:
                    self.run.first_token_s[command.job_id] = now_s
            events = self._kv.answers(commands)
            self._kv.heard.clear()


def replay(
    config: SchedulerConfig, arrivals: Sequence[Arrival], cost: CostProfile, *, most_iterations: int = 10_000
) -> Run:
    """Serve a trace. Raises AssertionError if it does not end in so many iterations."""
    serving = Replay(config, arrivals, cost)
    for _ in range(most_iterations):
        if not serving.iterate():
            return serving.run
    raise AssertionError(f"not served in {most_iterations} iterations")
