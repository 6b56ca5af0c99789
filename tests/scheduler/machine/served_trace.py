"""Traces served on a virtual clock: a scheduler, a KV manager that has room for everybody and a worker that takes the
time the cost model says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.domain.cost import CostProfile
from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import (
    Emit,
    End,
    Event,
    KvConnected,
    SendPlan,
    Submit,
)
from services.scheduler.scheduler_config import SchedulerConfig
from tests.scheduler.machine.checked_scheduler import CheckedScheduler, joined, plans
from tests.scheduler.machine.fake_kv_answers import FakeKvAnswers
from tests.scheduler.machine.fake_worker_results import FakeWorkerResults


@dataclass(frozen=True)
class Arrival:
    """A job of a trace."""

    job: str
    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    client_number: int = 0

    @property
    def submit(self) -> Submit:
        """What the scheduler is told."""
        return Submit(JobId(self.job), self.prompt_tokens, self.output_tokens, client_number=self.client_number)


@dataclass
class TraceOutcome:
    """What came of a trace."""

    finished_s: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    order: list[list[str]] = field(default_factory=list)
    """Jobs of every iteration."""

    @property
    def mean_s(self) -> float:
        """Mean finishing time."""
        return sum(self.finished_s.values()) / len(self.finished_s)


class ServedTrace:
    """Serves a trace on the virtual clock."""

    def __init__(self, config: SchedulerConfig, arrivals: Sequence[Arrival], cost: CostProfile) -> None:
        self.machine = CheckedScheduler(config)
        self.run = TraceOutcome()
        self._worker = FakeWorkerResults(cost)
        self._kv = FakeKvAnswers()
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
            self._feed([arrival.submit for arrival in due], now_s)

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


def serve_trace(
    config: SchedulerConfig, arrivals: Sequence[Arrival], cost: CostProfile, *, most_iterations: int = 10_000
) -> TraceOutcome:
    """Serve a trace. Raises AssertionError if it does not end in so many iterations."""
    serving = ServedTrace(config, arrivals, cost)
    for _ in range(most_iterations):
        if not serving.iterate():
            return serving.run
    raise AssertionError(f"not served in {most_iterations} iterations")
