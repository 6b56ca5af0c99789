"""A rank of a group, for the explorer: the real machine of a rank, above tables whose every slot remembers whose token
it holds. What takes time ends when it is told to: a copy, a step, the meeting of all ranks.
"""

from collections.abc import Callable, Hashable

from services.domain.ids import CommandNumber, Epoch
from services.domain.iteration import WorkerCounters
from services.domain.protocol import PlanEntry, SampledToken
from services.worker.group import rank_machine as rank
from services.worker.group.messages import Begin, FromRank, ToRank
from services.worker.step import Step, StepOutcome
from tests.fakes.fake_worker_tables import FakeWorkerTables, ViolationError


def computed_entries(step: Step) -> tuple[PlanEntry, ...]:
    """The entries of a step's plan that are not passed over."""
    return tuple(
        PlanEntry(entry.job_id, entry.from_token, entry.to_token)
        for entry in step.plan.entries
        if entry.job_id not in step.passed_over_job_ids
    )


class FakeRank:
    """One rank. What it says is returned, in order, by whatever made it say so."""

    def __init__(self, new_tables: Callable[[], FakeWorkerTables]) -> None:
        self._new_tables = new_tables
        self.machine = rank.RankMachine()
        self.tables = new_tables()
        self.copies: list[tuple[Epoch, CommandNumber]] = []
        """Names of the copies under way, as in the tables."""
        self.running: Step | None = None
        self.meeting: Begin | None = None

    def key(self) -> Hashable:
        """The whole state."""
        running = None if self.running is None else (self.running.plan.plan_number, computed_entries(self.running))
        return (self.machine.state_key(), self.tables.key(), tuple(self.copies), running, self.meeting)

    def hear(self, message: ToRank) -> list[FromRank]:
        """The leader says something. What is under way when a new epoch begins, a step or a meeting, is given up."""
        running, meeting = self.running, self.meeting
        said = self._take(rank.Heard(message))
        if isinstance(message, Begin) and running is not None:
            self.running = None
            said += self._take(rank.Broke(running.plan.epoch, "given up"))
        elif isinstance(message, Begin) and meeting is not None:
            self.meeting = None
            said += self._take(rank.Broke(meeting.epoch, "given up"))
        return said

    def lose_leader(self) -> None:
        """The connection ends."""
        self._take(rank.LeaderLost())

    def met(self) -> list[FromRank]:
        """All ranks have met."""
        assert self.meeting is not None
        begin, self.meeting = self.meeting, None
        return self._take(rank.Began(begin.epoch))

    def can_run(self) -> bool:
        """Whether a step runs and none of its jobs' uploads is unfinished (PROTOCOL 17)."""
        return self.running is not None and self.tables.can_start(computed_entries(self.running))

    def ran(self, tokens: tuple[SampledToken, ...]) -> list[FromRank]:
        """The step ends."""
        assert self.running is not None
        step, self.running = self.running, None
        for entry in step.plan.entries:
            if not entry.token_ids and entry.job_id not in step.passed_over_job_ids | step.input_token_ids.keys():
                raise ViolationError(f"{entry} of a step goes on from no token")
        self.tables.run(computed_entries(step))
        return self._take(rank.Stepped(step, StepOutcome(tokens, {}, (), 1.0, 0.0), WorkerCounters()))

    def copied(self, index: int) -> list[FromRank]:
        """A copy ends."""
        self.tables.end_copy(index)
        return self._take(rank.CopyEnded(*self.copies.pop(index)))

    def _take(self, event: rank.Event) -> list[FromRank]:
        said: list[FromRank] = []
        for action in self.machine.handle(event):
            match action:
                case rank.Say(message):
                    said.append(message)
                case rank.Meet(begin):
                    self._forget()
                    self.meeting = begin
                case rank.Compute(step):
                    self.running = step
                case rank.Apply(command):
                    epoch = self.machine.epoch
                    self.copies += [(epoch, CommandNumber(number)) for number in self.tables.apply((command,))]
        return said

    def _forget(self) -> None:
        """New tables. A copy that still runs, which the machine should have awaited, goes on in them."""
        running = self.tables.copies
        self.tables = self._new_tables()
        self.tables.copies = running
