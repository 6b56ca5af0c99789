"""Long random lives of the scheduler with peers that keep to PROTOCOL: its invariants hold after every turn, no token
is lost or repeated, and everybody ends.
"""

from collections import deque
from copy import deepcopy
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.protocol import (
    Ack,
    Arrive,
    ArrivedJob,
    Grown,
    IterationResult,
    Jobs,
    KvToScheduler,
    ReclaimRequest,
    Refuse,
    Release,
    Resident,
    SampledToken,
)
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Command,
    Emit,
    End,
    Event,
    FromKv,
    KvConnected,
    SendPlan,
    Submit,
    ToKv,
    WorkerJoined,
    WorkerLost,
)
from services.scheduler.scheduler_config import Charge, PolicyName, SchedulerConfig
from tests.builders.cost_profiles import proportional_cost
from tests.scheduler.machine.checked_scheduler import CheckedScheduler

PROFILE = proportional_cost(0.01, 0.02)
MOST_TURNS = 3000

GUIDED = frozenset({JobId("j1"), JobId("j4")})
"""A worker may pass their first entry over."""


class RandomPeers:
    """A KV manager and a worker that take random steps within the rules."""

    def __init__(self, random: Random, machine: CheckedScheduler) -> None:
        self._random = random
        self._machine = machine
        self._iteration_s = random.choice((0.002, 0.02))
        self._epoch = Epoch(0)
        self._most: dict[JobId, int] = {}
        self._valid: dict[JobId, int] = {}
        self._resident: dict[JobId, int] = {}
        self._asked: dict[JobId, int] = {}
        """The capacity of each job."""
        self._plans: deque[SendPlan] = deque()
        self.to_scheduler: deque[Event] = deque()
        self.tokens: dict[JobId, int] = {}
        self.ended: dict[JobId, EndReason] = {}
        self.known: dict[JobId, int] = {}
        self._stays: dict[JobId, int] = {}

    def join(self) -> list[Event]:
        """The worker joins (again), with empty pools."""
        self._epoch = Epoch(self._epoch + 1)
        self._most.clear()
        self._resident.clear()
        self._asked.clear()
        self._plans.clear()
        self.to_scheduler.clear()
        return [WorkerLost(Epoch(self._epoch - 1)), WorkerJoined(self._epoch, 10_000, 1000, PROFILE)]

    def hear(self, commands: list[Command]) -> None:
        """Take the scheduler's commands."""
        for command in commands:
            match command:
                case ToKv(_, Jobs(jobs=jobs)):
                    self._most = {}
                    for job in jobs:
                        self._arrive(job)
                case ToKv(_, Arrive(job)):
                    self._arrive(job)
                case ToKv(_, Ack(job_id)):
                    del self._asked[job_id]
                    if self._random.random() < 0.5:
                        self._valid[job_id] = 0
                case ToKv(_, Refuse(job_id)):
                    self._resident[job_id] = self._asked.pop(job_id)
                case ToKv(_, Release(job_id)):
                    self._most.pop(job_id)
                    self._resident.pop(job_id, None)
                    self._asked.pop(job_id, None)
                case SendPlan():
                    self._plans.append(command)
                case Emit(job_id, _, number, _):
                    assert number == self.tokens.get(job_id, 0), "a token is lost or repeated"
                    self.tokens[job_id] = number + 1
                case End(job_id, reason):
                    self.ended[job_id] = reason

    def act(self) -> None:
        """One of the peers takes a step."""
        choice = self._random.random()
        out = [job_id for job_id in self._most if job_id not in self._resident and job_id not in self._asked]
        inside = sorted(self._resident)
        if self._plans and choice < 0.5:
            self._run(self._plans.popleft())
        elif out and choice < 0.75:
            job_id = self._random.choice(out)
            capacity = min(self._most[job_id], self.known[job_id] + self._random.randrange(4))
            self._resident[job_id] = capacity
            self._say(Resident(job_id, capacity, self._valid[job_id], self._stays[job_id]))
        elif inside and choice < 0.9:
            job_id = self._random.choice(inside)
            if self._resident[job_id] < self._most[job_id]:
                self._resident[job_id] = min(self._most[job_id], self._resident[job_id] + self._random.randrange(1, 5))
                self._say(Grown(job_id, self._resident[job_id], self._stays[job_id]))
        elif inside:
            job_id = self._random.choice(inside)
            others = [other for other in self._most if other != job_id]
            beneficiary_id = self._random.choice(others) if others and self._random.random() < 0.8 else None
            self._asked[job_id] = self._resident.pop(job_id)
            self._say(ReclaimRequest(job_id, beneficiary_id, self._stays[job_id]))

    def _arrive(self, job: ArrivedJob) -> None:
        self._most[job.job_id] = job.most_tokens
        self._valid[job.job_id] = 0
        self.known[job.job_id] = job.known_tokens
        self._stays[job.job_id] = job.stay_number

    def _say(self, message: KvToScheduler) -> None:
        self.to_scheduler.append(FromKv(self._epoch, message))

    def _run(self, plan: SendPlan) -> None:
        tokens, cut = [], []
        limits = dict(plan.cut_after_s)
        for job_id, from_token, to_token in plan.entries:
            may_be_cut = job_id in limits or (job_id in GUIDED and from_token == 0)
            if may_be_cut and self._random.random() < 0.5:
                cut.append(job_id)
                self._valid[job_id] = 0
                continue
            self._valid[job_id] = to_token
            if to_token == self.known[job_id]:
                self.known[job_id] += 1
                tokens.append(SampledToken(job_id, 1, self._random.random() < 0.02))
        result = IterationResult(
            plan.epoch, plan.plan_number, tuple(tokens), tuple(cut), self._iteration_s * self._random.randrange(1, 4)
        )
        self.to_scheduler.append(result)


def live(seed: int, config: SchedulerConfig, jobs: int = 8) -> CheckedScheduler:
    """A life with so many jobs, from the first to the last."""
    random = Random(seed)
    machine = CheckedScheduler(config)
    peers = RandomPeers(random, machine)
    peers.hear(machine.turn(KvConnected(), *peers.join()))
    submitted = 0
    for _ in range(MOST_TURNS):
        events: list[Event] = []
        if submitted < jobs and random.random() < 0.1:
            job_id = JobId(f"j{submitted}")
            tokens = (random.randrange(1, 60), random.randrange(1, 12))
            events.append(Submit(job_id, *tokens, is_guided=job_id in GUIDED))
            submitted += 1
        if submitted and random.random() < 0.01:
            events.append(Cancel(JobId(f"j{random.randrange(submitted)}"), EndReason.CANCELLED))
        if random.random() < 0.005:
            events += peers.join()
        peers.act()
        while peers.to_scheduler and random.random() < 0.7:
            events.append(peers.to_scheduler.popleft())
        peers.hear(machine.turn(*events, at_s=machine.now_s + 0.01))
        if submitted == jobs and not machine.scheduler.jobs:
            break
    assert len(peers.ended) == jobs, "not everybody ended"
    assert not machine.scheduler.jobs
    return machine


@pytest.mark.parametrize("policy", list(PolicyName))
@given(
    seed=st.integers(0, 10**6),
    chunk=st.sampled_from([None, 7]),
    plans=st.sampled_from([1, 2, 3, None]),
    marginal=st.booleans(),
)
def test_whatever_the_peers_do_the_invariants_hold_and_everybody_ends(
    policy: PolicyName, seed: int, chunk: int | None, plans: int | None, marginal: bool
) -> None:
    config = SchedulerConfig(
        policy=policy,
        max_batch=3,
        max_batch_tokens=80,
        prefill_chunk_tokens=chunk,
        plans_in_flight=plans,
        starvation_limit_s=0.5,
        charge=Charge.MARGINAL if marginal else Charge.WALL,
    )
    live(seed, config)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_recorded_turns_give_the_same_commands_again(policy: PolicyName) -> None:
    machine = live(5, SchedulerConfig(policy=policy, max_batch=3, starvation_limit_s=0.5))
    again = Scheduler(machine.config)
    for events, now_s, commands in machine.turns:
        assert again.handle(events, now_s) == commands


def test_a_copy_lives_its_own_life_and_equal_states_have_equal_keys() -> None:
    machine = live(9, SchedulerConfig(max_batch=2, starvation_limit_s=0.5))
    scheduler = Scheduler(machine.config)
    for events, now_s, commands in machine.turns:
        copy = deepcopy(scheduler)
        assert copy.state_key() == scheduler.state_key()
        hash(copy.state_key())
        before = scheduler.state_key()
        assert copy.handle(events, now_s) == commands
        assert scheduler.state_key() == before
        scheduler = copy
