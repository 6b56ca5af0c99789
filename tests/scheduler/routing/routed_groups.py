"""Several machines behind a router, without streams: a KV manager that has room for everybody, and workers that run a
plan when the test says so.
"""

from collections import deque
from collections.abc import Sequence

from services.domain.cost import CostProfile
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Arrive,
    ArrivedJob,
    IterationResult,
    Jobs,
    PlansGivenBack,
    Release,
    Resident,
    SampledToken,
    SchedulerToKv,
)
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Emit,
    Event,
    KvConnected,
    MovingJob,
    RecallPlans,
    Reject,
    SendPlan,
    Submit,
    TakeIn,
    Withdraw,
    Withdrawn,
    WorkerJoined,
    WorkerLost,
)
from services.scheduler.routing.job_moves import JobMove
from services.scheduler.routing.router import Resumed, Router
from services.scheduler.scheduler_config import SchedulerConfig
from tests.scheduler.machine.fake_kv_answers import FakeKvAnswers

MOST_PLANS = 10_000


class KvForFewJobs(FakeKvAnswers):
    """A KV manager with room for so many jobs: the others wait in the order in which they came."""

    def __init__(self, most_jobs: int) -> None:
        super().__init__()
        self._most_jobs = most_jobs
        self._jobs: dict[JobId, ArrivedJob] = {}
        self._inside: set[JobId] = set()

    def _answer(self, epoch: Epoch, message: SchedulerToKv) -> list[Resident]:
        match message:
            case Jobs():
                self._jobs = {job.job_id: job for job in message.jobs}
                self._inside.clear()
            case Arrive(job):
                self._jobs[job.job_id] = job
            case Release(job_id):
                del self._jobs[job_id]
                self._inside.discard(job_id)
        waiting = [job for job_id, job in self._jobs.items() if job_id not in self._inside]
        let_in = waiting[: self._most_jobs - len(self._inside)]
        self._inside.update(job.job_id for job in let_in)
        return [self._resident(job) for job in let_in]


class RoutedGroups:
    """`costs`: the profile of each group; its worker takes `slowdowns[group]` times as long as that says. The KV
    manager has room for `resident_jobs` jobs of each group. With `max_model_len` the groups begin when they are added.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        costs: Sequence[CostProfile],
        pool_tokens: Sequence[int] = (),
        resident_jobs: int = 1_000_000,
        max_model_len: int | None = None,
    ) -> None:
        self._config = config
        present = len(costs) if max_model_len is None else 0
        self.machines = {number: Scheduler(config) for number in range(present)}
        self.router = Router(config, self.machines, max_model_len)
        self.refused: list[Reject] = []
        self.slowdowns = [1.0] * len(costs)
        self.now_s = 0.0
        self.tokens: dict[JobId, int] = {}
        self.moved: list[JobMove] = []
        self._costs = costs
        self._pools = pool_tokens or [100_000] * len(costs)
        self._kv = [KvForFewJobs(resident_jobs) for _ in costs]
        self._plans: list[deque[SendPlan]] = [deque() for _ in costs]
        self._epochs = [0] * len(costs)

    def add(self, group: int) -> None:
        """The group begins."""
        self.machines[group] = Scheduler(self._config)
        self.router.add_group(group, self.machines[group])

    def forget(self, group: int) -> None:
        """The group is forgotten."""
        del self.machines[group]
        self.router.remove_group(group)

    def join(self, *groups: int, settles: bool = True) -> None:
        """Workers join, with the KV manager connected. If it `settles`, jobs move then."""
        for group in groups or self.machines:
            self._epochs[group] += 1
            joined = WorkerJoined(Epoch(self._epochs[group]), self._pools[group], 4000, self._costs[group])
            self.router.joined(group, joined)
            if settles:
                self.turn(group, joined, KvConnected())
            else:
                self._turns(group, (joined, KvConnected()))

    def drain(self, group: int, limit_s: float) -> None:
        """The group's worker was told to end."""
        self.router.drain(group, limit_s, self.now_s)
        self.turn(group)

    def lose(self, group: int) -> None:
        """The worker dies."""
        self._plans[group].clear()
        self.router.stopped(group)
        self.turn(group, WorkerLost(Epoch(self._epochs[group])))

    def submit(
        self,
        name: str,
        prompt_tokens: int = 10,
        max_tokens: int = 100,
        deadline_s: float | None = None,
        resumed: Resumed | None = None,
    ) -> int:
        """A job arrives; returns its group."""
        routed = self.route(name, prompt_tokens, max_tokens, deadline_s, resumed)
        assert isinstance(routed, int), routed
        return routed

    def route(
        self,
        name: str,
        prompt_tokens: int = 10,
        max_tokens: int = 100,
        deadline_s: float | None = None,
        resumed: Resumed | None = None,
    ) -> int | Reject | None:
        """The group that the router chose, after the machine's turn, or why it refused the job. None: it waits."""
        if resumed is not None:
            self.tokens[JobId(name)] = resumed.output_tokens
        routed = self.router.submit(Submit(JobId(name), prompt_tokens, max_tokens, deadline_s), self.now_s, resumed)
        if routed is None or isinstance(routed, Reject):
            return routed
        self.turn(routed.group, routed.submit)
        return routed.group

    def turn(self, group: int, *events: Event) -> None:
        """Turns of a group until its KV manager has answered all; then jobs move."""
        self._turns(group, events)
        self._move_jobs()
        self.check()

    def run(self, group: int, plans: int = 1) -> None:
        """The worker runs its next plans."""
        for _ in range(plans):
            plan = self._plans[group].popleft()
            decodes = sum(entry.to_token - entry.from_token == 1 for entry in plan.entries)
            prefills = [(one.from_token, one.to_token) for one in plan.entries if one.to_token - one.from_token > 1]
            took_s = self.slowdowns[group] * self._costs[group].iteration_s(prefills, decodes, 1.0)
            self.now_s += took_s
            tokens = tuple(SampledToken(entry.job_id, 7, False) for entry in plan.entries)
            self.turn(group, IterationResult(plan.epoch, plan.plan_number, tokens, (), took_s))

    def run_one_of(self, groups: Sequence[int]) -> None:
        """The first of these groups that has a plan runs it."""
        group = next((one for one in groups if self._plans[one]), None)
        if group is not None:
            self.run(group)

    def run_all(self) -> None:
        """All groups run until nothing is left to run."""
        for _ in range(MOST_PLANS):
            busy = [group for group, plans in enumerate(self._plans) if plans and group in self.machines]
            if not busy:
                return
            for group in busy:
                if self._plans[group]:
                    self.run(group)
        raise AssertionError("the groups do not come to an end")

    def jobs_of(self, group: int) -> list[str]:
        """The group's jobs, best first."""
        return [job.job_id for job in self.machines[group].ranking.by_rank()]

    def check(self) -> None:
        """All invariants."""
        for machine in self.machines.values():
            machine.check()
        self.router.check()

    def _turns(self, group: int, events: Sequence[Event]) -> list[MovingJob]:
        """Turns until the KV manager has answered all. Returns the jobs that left."""
        withdrawn: list[MovingJob] = []
        while events:
            events, left = self._one_turn(group, events)
            withdrawn += left
        return withdrawn

    def _one_turn(self, group: int, events: Sequence[Event]) -> tuple[Sequence[Event], list[MovingJob]]:
        commands = self.machines[group].handle(events, self.now_s)
        self.router.heard(group, events, commands, self.now_s)
        self.machines[group].check()
        self._plans[group] += [command for command in commands if isinstance(command, SendPlan)]
        for command in commands:
            if isinstance(command, Emit):
                assert command.token_number == self.tokens.get(command.job_id, 0), "a token is lost or repeated"
                self.tokens[command.job_id] = command.token_number + 1
        withdrawn = [command.job for command in commands if isinstance(command, Withdrawn)]
        recalls = [command for command in commands if isinstance(command, RecallPlans)]
        return [*self._kv[group].answers(commands), *(self._give_back(group, recall) for recall in recalls)], withdrawn

    def _give_back(self, group: int, recall: RecallPlans) -> PlansGivenBack:
        """The worker keeps the next of its plans, as it may."""
        first: PlanNumber | None = None
        waiting = self._plans[group]
        while len(waiting) > 1 and waiting[-1].plan_number >= recall.first_plan_number:
            first = waiting.pop().plan_number
        return PlansGivenBack(recall.epoch, first)

    def _move_jobs(self) -> None:
        for group, hold in self.router.holds(self.now_s):
            self._turns(group, (hold,))
        for move in self.router.moves():
            self.moved.append(move)
            [moving] = self._turns(move.from_group, [Withdraw(move.job_id)])
            self._turns(move.to_group, [TakeIn(moving)])
        for placed in self.router.placements(self.now_s):
            if isinstance(placed, Reject):
                self.refused.append(placed)
            else:
                self._turns(placed.group, (placed.submit,))
