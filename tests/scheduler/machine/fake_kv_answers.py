"""The answers of a KV manager that has room for everybody, without streams: a job is resident as soon as it arrives,
with capacity for all it may need.

Tests that want less take its answers into their own hands: `capacity_tokens` limits what a job gets at first.
"""

from collections.abc import Iterable

from services.domain.ids import Epoch
from services.domain.protocol import Ack, Arrive, ArrivedJob, Jobs, Release, Resident, SchedulerToKv
from services.scheduler.machine.scheduler_events import Command, FromKv, ToKv


class FakeKvAnswers:
    """Answers of a KV manager to the messages of one turn."""

    def __init__(self, capacity_tokens: int | None = None) -> None:
        self._capacity_tokens = capacity_tokens
        self.released: list[str] = []
        self.heard: list[SchedulerToKv] = []

    def answers(self, commands: Iterable[Command]) -> list[FromKv]:
        """The KV manager's answers to the commands of a turn."""
        answers: list[FromKv] = []
        for command in commands:
            if isinstance(command, ToKv):
                self.heard.append(command.message)
                answers += [FromKv(command.epoch, answer) for answer in self._answer(command.epoch, command.message)]
        return answers

    def _answer(self, epoch: Epoch, message: SchedulerToKv) -> list[Resident]:
        match message:
            case Jobs():
                assert message.epoch == epoch
                return [self._resident(job) for job in message.jobs]
            case Arrive():
                return [self._resident(message.job)]
            case Ack():
                raise AssertionError("nothing was asked for")
            case Release():
                self.released.append(message.job_id)
        return []

    def _resident(self, job: ArrivedJob) -> Resident:
        limit = self._capacity_tokens
        return Resident(
            job.job_id, job.most_tokens if limit is None else max(limit, job.known_tokens), 0, job.stay_number
        )
