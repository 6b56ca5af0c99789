"""An engine of one rank without a model: it answers every entry that it computes with token 7 on the rank that
samples.
"""

import threading
from collections.abc import Callable

from services.domain.errors import ProtocolError
from services.domain.iteration import WorkerCounters
from services.domain.protocol import Applied, Done, KvToWorker, SampledToken
from services.worker.group.messages import Begin
from services.worker.group.rank_machine import has_copies
from services.worker.sampling.guide_states import GuideStates
from services.worker.step import Step, StepOutcome
from tests.builders.waits import LIMIT_S


class FakeEngineOfRank:
    """`go_on` holds steps while it is not set; `fails` makes the next one fail like a lost peer, or otherwise."""

    def __init__(self, samples: bool) -> None:
        self._samples = samples
        self.met: list[Begin] = []
        self.commands: list[KvToWorker] = []
        self.expected: list[Step] = []
        self.steps: list[Step] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails: Exception | None = None
        self.refuses_commands = False
        self.plan_wait_s = 0.0
        self._on_done: Callable[[Done], None] = lambda done: None
        self.guides = GuideStates(None, "no model")

    def prepare_thread(self) -> None: ...

    def meet(self, begin: Begin, on_done: Callable[[Done], None]) -> None:
        self.met.append(begin)
        self._on_done = on_done

    def apply(self, command: KvToWorker) -> Applied:
        if self.refuses_commands:
            raise ProtocolError("a command that can't be right")
        self.commands.append(command)
        return Applied(command.command_number)

    def end_copies(self) -> None:
        """The copies of all commands so far end."""
        for command in self.commands:
            if has_copies(command):
                self._on_done(Done(command.command_number))

    def expect(self, step: Step) -> None:
        self.expected.append(step)

    def step(self, step: Step) -> StepOutcome:
        assert self.go_on.wait(LIMIT_S)
        assert step in self.expected, "what a step needs of others is asked for before it is begun"
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
        self.steps.append(step)
        job_ids = [entry.job_id for entry in step.plan.entries if entry.job_id not in step.passed_over_job_ids]
        tokens = tuple(SampledToken(job_id, 7, False) for job_id in job_ids) if self._samples else ()
        return StepOutcome(tokens, {}, (), 0.5, 0.0)

    def counters(self) -> WorkerCounters:
        return WorkerCounters(plan_wait_s=self.plan_wait_s, offloaded_bytes=10 * len(self.steps))

    def add_plan_wait(self, seconds: float) -> None:
        self.plan_wait_s += seconds

    def give_up(self) -> None:
        self.go_on.set()
