"""A scheduler without streams, checked after every turn, and its commands in short."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.domain.cost import CostProfile
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.protocol import IterationResult, Resident, SampledToken, SchedulerToKv
from services.scheduler.job import JobState
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
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
from tests.builders.cost_profiles import proportional_cost

EPOCH = Epoch(7)
PRESENT_STAY = -1
"""The stay number of a message about the job as it is now; `turn` puts in the real one."""
TOKEN = 5
"""The token that the worker samples, always."""

COST = proportional_cost(0.001, 0.2)
"""A prefill of n tokens takes n ms, a decode 0.2 s."""


def joined(
    cost: CostProfile | None = None, *, epoch: int = EPOCH, pool_tokens: int = 1_000_000, max_model_len: int = 4000
) -> WorkerJoined:
    """A worker joins."""
    return WorkerJoined(Epoch(epoch), pool_tokens, max_model_len, cost or COST)


@dataclass
class CheckedScheduler:
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
        events = tuple(self._of_present_stay(event) for event in events)
        commands = self.scheduler.handle(events, self.now_s)
        self.scheduler.check()
        self.turns.append((events, self.now_s, commands))
        self.commands += commands
        return commands

    def _of_present_stay(self, event: Event) -> Event:
        if not isinstance(event, FromKv) or event.message.stay_number != PRESENT_STAY:
            return event
        job = self.scheduler.jobs.get(event.message.job_id)
        return event._replace(message=event.message._replace(stay_number=0 if job is None else job.stay_number))

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


def machine_with(
    jobs: list[tuple[str, int, int]], cost: CostProfile | None = None, **knobs: object
) -> CheckedScheduler:
    """A machine with these jobs (name, prompt tokens, output tokens) resident."""
    machine = CheckedScheduler(fcfs(**knobs))
    machine.start(cost)
    submits = [Submit(JobId(name), prompt, output) for name, prompt, output in jobs]
    residents = [
        FromKv(EPOCH, Resident(JobId(name), prompt + output, 0, number))
        for number, (name, prompt, output) in enumerate(jobs)
    ]
    machine.turn(*submits, *residents)
    return machine


def shape(plan: SendPlan) -> dict[str, tuple[int, int]]:
    """A plan's entries by job."""
    return {entry.job_id: (entry.from_token, entry.to_token) for entry in plan.entries}


def fcfs(**knobs: object) -> SchedulerConfig:
    return SchedulerConfig(**({"policy": PolicyName.FCFS} | knobs))  # type: ignore[arg-type]


def started(
    config: SchedulerConfig | None = None, *jobs: JobId, prompt: int = 10, output: int = 100
) -> CheckedScheduler:
    """A machine with jobs that arrived and are not resident."""
    machine = CheckedScheduler(config or fcfs())
    machine.start()
    if jobs:
        machine.turn(*(Submit(job_id, prompt, output) for job_id in jobs))
    return machine


def state(machine: CheckedScheduler, job_id: JobId) -> JobState:
    return machine.scheduler.jobs[job_id].state
