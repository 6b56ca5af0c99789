"""A KV manager with short names for its peers' messages; all invariants are checked after every turn."""

from collections.abc import Sequence

from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Applied,
    Arrive,
    ArrivedJob,
    Done,
    Finished,
    Grown,
    Jobs,
    KvToScheduler,
    KvToWorker,
    Order,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    ReclaimRequest,
    Refuse,
    Release,
    Resident,
    SchedulerToKv,
    WorkerPools,
)
from services.kvmanager.machine.kv_job import KvState
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    Command,
    Event,
    FromScheduler,
    FromWorker,
    SchedulerConnected,
    ToScheduler,
    ToWorker,
)
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named

EPOCH = Epoch(7)
STAY = 41
"""The stay number of every job, unless a test is about it."""
Message = KvToScheduler | KvToWorker


def resident(name: str, capacity: int, valid: int = 0, stay_number: int = STAY) -> Resident:
    """The job may be planned."""
    return Resident(JobId(name), capacity, valid, stay_number)


def grown(name: str, capacity: int, stay_number: int = STAY) -> Grown:
    """The job may be planned further."""
    return Grown(JobId(name), capacity, stay_number)


def reclaim(name: str, beneficiary: str | None, stay_number: int = STAY) -> ReclaimRequest:
    """May this job's blocks be taken?"""
    return ReclaimRequest(JobId(name), None if beneficiary is None else JobId(beneficiary), stay_number)


def knobs(policy: str, *, lookahead: int = 0, grant: int = 1, idle_slots: int = 0, share: float = 1.0) -> KvConfig:
    """A policy without growth ahead of need, and without a reserve, unless a test is about them."""
    return KvConfig(kv_policy_named(policy, idle_slots, share), lookahead_tokens=lookahead, grant_blocks=grant)


class CheckedKvManager:
    """The machine between a scheduler and a worker that say what the test says. Blocks hold one token by default."""

    def __init__(
        self,
        policy: str | KvConfig = "reactive",
        *,
        device: int = 4,
        host: int = 8,
        block_size: int = 1,
        max_batch: int = 4,
        quanta_s: tuple[float, ...] = (),
        starvation_limit_s: float | None = None,
        displaces: bool = True,
    ) -> None:
        self.machine = KvManager(knobs(policy) if isinstance(policy, str) else policy)
        self.now_s = 0.0
        self._plans = 0
        self._arrivals = 0
        self.ranks: dict[str, Rank] = {}
        self.turn(SchedulerConnected())
        self.say(Jobs(EPOCH, (), (), max_batch, quanta_s, starvation_limit_s, displaces))
        self.turn(FromWorker(EPOCH, WorkerPools(EPOCH, block_size, device, host)))

    # --- turns -------------------------------------------------------------------------------------------------------

    def turn(self, *events: Event) -> list[Message]:
        """Take a turn; returns its messages, whoever they are for."""
        commands = self.commands(*events)
        return [command.message for command in commands if isinstance(command, ToScheduler | ToWorker)]

    def commands(self, *events: Event) -> list[Command]:
        """Take a turn; returns its commands unchanged."""
        commands = self.machine.handle(events, self.now_s)
        self.machine.check()
        return commands

    def say(self, *messages: SchedulerToKv, epoch: Epoch = EPOCH) -> list[Message]:
        """One turn of the scheduler."""
        return self.turn(*(FromScheduler(epoch, message) for message in messages))

    # --- the scheduler -----------------------------------------------------------------------------------------------

    def arrive(self, name: str, tokens: int, most: int, level: int = 0, key: float | None = None) -> list[Message]:
        """A job arrives, behind all others of its level unless a key says more."""
        return self.say(*self.arrival(name, tokens, most, level, key))

    def arrival(
        self, name: str, tokens: int, most: int, level: int = 0, key: float | None = None, stay_number: int = STAY
    ) -> tuple[Arrive, Order]:
        """The messages of an arrival."""
        self._arrivals += 1
        rank = Rank(level, float(self._arrivals) if key is None else key, self._arrivals)
        self.ranks[name] = rank
        return Arrive(ArrivedJob(JobId(name), tokens, most, stay_number)), Order((OrderChange(JobId(name), rank),))

    def order(self, *best_first: str, level: int = 0) -> list[Message]:
        """These jobs now precede all others of the level, in this order."""
        changes: list[OrderChange] = []
        for place, name in enumerate(best_first):
            self.ranks[name] = Rank(level, place - 1000.0, self.ranks[name].arrival_number)
            changes.append(OrderChange(JobId(name), self.ranks[name]))
        return self.say(Order(tuple(changes)))

    def plan(self, *entries: tuple[str, int, int]) -> list[Message]:
        """The next plan: (job, from, to) of each entry."""
        self._plans += 1
        planned = tuple(PlanEntry(JobId(name), start, stop) for name, start, stop in entries)
        return self.say(Planned(PlanNumber(self._plans), planned))

    def finish(self, plan: int | None = None) -> list[Message]:
        """The result of the last plan, or of another one, is back."""
        return self.say(Finished(PlanNumber(self._plans if plan is None else plan)))

    def run(self, *entries: tuple[str, int, int]) -> list[Message]:
        """A plan, and its result."""
        return self.plan(*entries) + self.finish()

    def ack(self, name: str) -> list[Message]:
        """Consent."""
        return self.say(Ack(JobId(name)))

    def refuse(self, name: str) -> list[Message]:
        """No consent."""
        return self.say(Refuse(JobId(name)))

    def release(self, name: str) -> list[Message]:
        """The job ended."""
        return self.say(Release(JobId(name)))

    # --- the worker --------------------------------------------------------------------------------------------------

    def applied(self, command: int) -> list[Message]:
        """The worker has applied a command's effect on the tables."""
        return self.turn(FromWorker(EPOCH, Applied(CommandNumber(command))))

    def done(self, command: int) -> list[Message]:
        """A command's copies have ended."""
        return self.turn(FromWorker(EPOCH, Done(CommandNumber(command))))

    def settle(self, messages: Sequence[Message]) -> list[KvToScheduler]:
        """The worker applies and copies everything at once, until nothing follows. Returns the messages to the
        scheduler.
        """
        heard: list[KvToScheduler] = []
        waiting = list(messages)
        while waiting:
            message = waiting.pop(0)
            if isinstance(message, Resident | Grown | ReclaimRequest):
                heard.append(message)
                continue
            waiting += self.applied(message.command_number)
            waiting += self.done(message.command_number)
        return heard

    def bring(self, name: str, tokens: int, most: int, level: int = 0, key: float | None = None) -> None:
        """A job arrives before all others, becomes resident, and runs its prefill; only then it takes its place."""
        self.settle(self.arrive(name, tokens, most, min(level, 2), -1e6))
        self.settle(self.run((name, 0, tokens)))
        self.place(name, level, float(self._arrivals) if key is None else key)

    def place(self, name: str, level: int, key: float) -> list[KvToScheduler]:
        """The job's place changes."""
        self.ranks[name] = Rank(level, key, self.ranks[name].arrival_number)
        return self.settle(self.say(Order((OrderChange(JobId(name), self.ranks[name]),))))

    def swap_out(self, name: str) -> None:
        """Consent to the reclaim of a job, and finish its offload."""
        self.settle(self.ack(name))

    # --- questions ---------------------------------------------------------------------------------------------------

    def state(self, name: str) -> KvState | None:
        """Where the job's KV is."""
        return self.machine.state_of(JobId(name))

    def free(self) -> tuple[int, int]:
        """The numbers of free blocks on the device and on the host."""
        figures = self.machine.pool_usage()
        assert figures is not None
        return figures.device_blocks_free, figures.host_blocks_free
