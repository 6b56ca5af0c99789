"""One rank of a group as a state machine: what it does with what its leader says. No I/O, no clock, no torch.

Theory of operation
-------------------
The leader's messages come over one first-in first-out connection. Commands of the KV manager take effect at once, in
order; steps wait in a queue and run one at a time. At a Begin everything is forgotten: steps that have not begun are
dropped, the step under way and the copies under way are waited for, and only then the rank meets the others and says
Ready [report-after-all-ranks]. So no copy of an earlier epoch touches a block of this one.

What the leader's process runs itself is such a machine too, without a connection.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch
from services.domain.iteration import WorkerCounters
from services.domain.protocol import KvToWorker, Offload, Upload
from services.worker.group.messages import (
    Begin,
    Copied,
    Failed,
    FromRank,
    PrepareGuide,
    Ran,
    Ready,
    Relayed,
    Scored,
    ToRank,
)
from services.worker.step import Step, StepOutcome

NO_EPOCH = Epoch(0)
MOST_WAITING_STEPS = 64

# --- events ----------------------------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """The leader said something."""

    message: ToRank


class LeaderLost(NamedTuple):
    """The connection ended, and the epoch with it."""


class Began(NamedTuple):
    """`Meet` has ended: everything is forgotten, and all ranks were met."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Stepped:
    """`Compute` has ended."""

    step: Step
    outcome: StepOutcome
    counters: WorkerCounters


class Broke(NamedTuple):
    """`Meet` or `Compute` has failed."""

    epoch: Epoch
    reason: str


class CopyEnded(NamedTuple):
    """The copies of a command have ended."""

    epoch: Epoch
    command_number: CommandNumber


Event = Heard | LeaderLost | Began | Stepped | Broke | CopyEnded

# --- actions ---------------------------------------------------------------------------------------------------------


class Meet(NamedTuple):
    """Forget everything and meet the other ranks; then Began, or Broke."""

    begin: Begin


class Apply(NamedTuple):
    """Change the tables at once and start the copies. Each command with moves ends with CopyEnded."""

    command: KvToWorker


class Compute(NamedTuple):
    """Run a step; then Stepped, or Broke."""

    step: Step


class Expect(NamedTuple):
    """A step will be run, after those expected before it: ask for what it needs of the stage before."""

    step: Step


class Prepare(NamedTuple):
    """Make the state of a guide, beside the steps; then say Prepared."""

    wanted: PrepareGuide


class Say(NamedTuple):
    """Tell the leader."""

    message: FromRank


Action = Meet | Apply | Expect | Compute | Prepare | Say


def has_copies(command: KvToWorker) -> bool:
    """Whether the command will be Done, not only Applied."""
    return isinstance(command, Offload | Upload) and bool(command.moves)


class RankMachine:
    """One rank. At most one `Meet` or `Compute` is under way."""

    def __init__(self) -> None:
        self._epoch = NO_EPOCH
        self._is_ready = False
        self._begin: Begin | None = None
        """The Begin that waits for what is under way."""
        self._busy = False
        self._steps: deque[Step] = deque()
        self._copies: set[tuple[Epoch, CommandNumber]] = set()

    @property
    def epoch(self) -> Epoch:
        """The epoch that the leader began last; 0 without a leader."""
        return self._epoch

    def handle(self, event: Event) -> list[Action]:
        """Takes one event. Raises ProtocolError when the leader said what it can't say now."""
        match event:
            case Heard(message):
                return self._heard(message)
            case LeaderLost():
                self._forget(NO_EPOCH)
                self._begin = None
                return []
            case Began(epoch):
                return self._began(epoch)
            case Stepped():
                return self._stepped(event)
            case Broke(epoch, reason):
                return self._broke(epoch, reason)
            case CopyEnded(epoch, command_number):
                self._copies.discard((epoch, command_number))
                done: list[Action] = [Say(Copied(epoch, command_number))] if self._is_current(epoch) else []
                return done + self._go_on()

    def _heard(self, message: ToRank) -> list[Action]:
        if isinstance(message, Begin):
            self._forget(message.epoch)
            self._begin = message
            return self._go_on()
        if message.epoch != self._epoch:
            return []
        if not self._is_ready:
            raise ProtocolError(f"the leader began epoch {message.epoch} before this rank was ready for it")
        if isinstance(message, Relayed):
            if has_copies(message.command):
                self._copies.add((message.epoch, message.command.command_number))
            return [Apply(message.command)]
        if isinstance(message, PrepareGuide):
            return [Prepare(message)]
        if len(self._steps) >= MOST_WAITING_STEPS:
            raise ProtocolError(f"{MOST_WAITING_STEPS} plans wait to be run")
        self._steps.append(message.step)
        return [Expect(message.step), *self._go_on()]

    def _forget(self, epoch: Epoch) -> None:
        self._epoch, self._is_ready = epoch, False
        self._steps.clear()

    def _is_current(self, epoch: Epoch) -> bool:
        return self._is_ready and epoch == self._epoch

    def _began(self, epoch: Epoch) -> list[Action]:
        self._busy = False
        if epoch != self._epoch:
            return self._go_on()
        self._is_ready = True
        return [Say(Ready(epoch)), *self._go_on()]

    def _stepped(self, event: Stepped) -> list[Action]:
        self._busy = False
        plan = event.step.plan
        if not self._is_current(plan.epoch):
            return self._go_on()
        scored = [Say(Scored(plan.epoch, prompt)) for prompt in event.outcome.scored]
        ran = Ran(plan.epoch, plan.plan_number, replace(event.outcome, scored=()), event.counters)
        return [*scored, Say(ran), *self._go_on()]

    def _broke(self, epoch: Epoch, reason: str) -> list[Action]:
        self._busy = False
        if epoch != self._epoch:
            return self._go_on()
        self._forget(NO_EPOCH)
        return [Say(Failed(epoch, reason))]

    def _go_on(self) -> list[Action]:
        """The next Meet or Compute, if nothing is under way that it has to wait for."""
        if self._busy:
            return []
        if self._begin is not None:
            if self._copies:  # [report-after-all-ranks]
                return []
            begin, self._begin, self._busy = self._begin, None, True
            return [Meet(begin)]
        if not self._steps:
            return []
        self._busy = True
        return [Compute(self._steps.popleft())]

    def state_key(self) -> Hashable:
        """Everything that determines what the machine will do."""
        steps = tuple(step.plan.plan_number for step in self._steps)
        return (self._epoch, self._is_ready, self._begin, self._busy, steps, frozenset(self._copies))
