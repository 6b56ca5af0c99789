"""The leader of a group as a state machine: to scheduler and KV manager the group is one worker. No I/O, no clock, no
torch.

Theory of operation
-------------------
The leader passes on what the KV manager and the scheduler send, to each rank in the order in which it took it
[relay-order], its own rank included. So the tables of all ranks change in the same order between the same plans, and
Applied can be said for all at once. Done is said when every rank has copied [all-ranks-done], a result when every rank
has run the plan: only then may the KV manager give a block away.

A plan becomes a step when the tokens that it goes on from are back from the last stage. Which entries of ended jobs
are passed over is decided there and nowhere else, so that all ranks compute the same rows. So are entries that start a
job whose guide the sampling rank has not prepared yet. A plan of nothing else waits while no other plan does.

An epoch is formed when every rank is connected: each is told to begin, and when each is ready the leader says hello to
scheduler and KV manager [epoch-after-rendezvous]. A rank that is lost or fails ends the epoch for all.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.iteration import Plan, WorkerCounters, WorkerResult
from services.domain.prompt_logprobs import ScoredPrompt
from services.domain.protocol import Applied, Done, IterationResult, KvToWorker, PlansGivenBack, ReleaseBlocks
from services.worker.group.group_counters import counters_of_group
from services.worker.group.messages import (
    Begin,
    Copied,
    Failed,
    FromRank,
    Prepared,
    PrepareGuide,
    Ran,
    Ready,
    Relayed,
    Run,
    Scored,
    ToRank,
)
from services.worker.group.rank_machine import has_copies
from services.worker.step import OutputLedger, StepOutcome, guided_starts, output_of

MOST_WAITING_PLANS = 64

# --- events ----------------------------------------------------------------------------------------------------------


class RankJoined(NamedTuple):
    """A rank is connected, and fits."""

    rank: int


class RankLost(NamedTuple):
    """A rank's connection ended."""

    rank: int
    reason: str


class RankSaid(NamedTuple):
    """A rank said something."""

    rank: int
    message: FromRank


class EpochWanted(NamedTuple):
    """Form this epoch as soon as all ranks are connected."""

    begin: Begin


class EpochOver(NamedTuple):
    """The streams to scheduler and KV manager are closed."""


class PlanTaken(NamedTuple):
    """The scheduler sent a plan of the present epoch."""

    plan: Plan


class PlansRecalled(NamedTuple):
    """The scheduler needs no plan from this number on."""

    first_plan_number: PlanNumber


class CommandTaken(NamedTuple):
    """The KV manager sent a command of the present epoch."""

    command: KvToWorker


Event = RankJoined | RankLost | RankSaid | EpochWanted | EpochOver | PlanTaken | PlansRecalled | CommandTaken

# --- actions ---------------------------------------------------------------------------------------------------------


class Tell(NamedTuple):
    """Say this to a rank."""

    rank: int
    message: ToRank


class Hello(NamedTuple):
    """Join scheduler and KV manager as this epoch."""

    epoch: Epoch


class Acknowledge(NamedTuple):
    """Say this to the KV manager."""

    answer: Applied | Done


@dataclass(frozen=True, slots=True)
class Report:
    """Say this to the scheduler."""

    result: WorkerResult


class GiveBack(NamedTuple):
    """Say to the scheduler that these plans will not be run."""

    given_back: PlansGivenBack


class EndEpoch(NamedTuple):
    """Close both streams: the epoch has ended."""

    epoch: Epoch
    reason: str


Action = Tell | Hello | Acknowledge | Report | GiveBack | EndEpoch


class Phase(Enum):
    """How far an epoch has come."""

    OVER = "over"
    GATHERING = "gathering"
    FORMING = "forming"
    WORKING = "working"


@dataclass(slots=True)
class _PlanUnderWay:
    plan: Plan
    unready: tuple[JobId, ...]
    """Jobs that it does not start, because their guides are not prepared."""
    outcomes: dict[int, StepOutcome] = field(default_factory=dict)
    scored: list[ScoredPrompt] = field(default_factory=list)


class LeaderMachine:
    """The leader of a group of `stage_count` stages of `ranks_per_stage` ranks each, numbered stage by stage."""

    def __init__(self, stage_count: int, ranks_per_stage: int) -> None:
        self._stages = [range(stage * ranks_per_stage, (stage + 1) * ranks_per_stage) for stage in range(stage_count)]
        self._ranks = range(stage_count * ranks_per_stage)
        self._sampling_rank = self._stages[-1][0]
        self._joined: set[int] = set()
        self._phase = Phase.OVER
        self._begin: Begin | None = None
        self._new_epoch()

    def _new_epoch(self) -> None:
        self._ready: set[int] = set()
        self._ledger = OutputLedger()
        self._waiting: deque[Plan] = deque()
        self._under_way: deque[_PlanUnderWay] = deque()
        self._copying: dict[CommandNumber, set[int]] = {}
        """The ranks that still copy, by command."""
        self._counters: dict[int, WorkerCounters] = {}
        self._scored: list[ScoredPrompt] = []
        """Of the plan that the sampling rank runs."""
        self._guides: dict[JobId, bool] = {}
        """Jobs whose guides the sampling rank was asked for, and whether they are prepared; until they start."""

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that are not connected."""
        return tuple(rank for rank in self._ranks if rank not in self._joined)

    @property
    def lacks_plan(self) -> bool:
        """Whether the first stage has nothing to compute for want of a plan, though some job can still make tokens. A
        plan at hand that waits for tokens of the last stage is not lacking.
        """
        if self._phase is not Phase.WORKING or self._waiting:
            return False
        has_run = all(self._ranks[0] in one.outcomes for one in self._under_way)
        return has_run and self._ledger.has_unfinished_jobs()

    def handle(self, event: Event) -> list[Action]:
        """Takes one event. Raises ProtocolError when a peer sent what it can't send now."""
        match event:
            case RankSaid(rank, message):
                return self._said(rank, message)
            case PlanTaken(plan):
                return self._plan_taken(plan)
            case PlansRecalled(first):
                return self._plans_recalled(first)
            case CommandTaken(command):
                return self._command_taken(command)
            case RankJoined(rank):
                self._joined.add(rank)
                return self._form()
            case RankLost(rank, reason):
                self._joined.discard(rank)
                return self._end(f"rank {rank} was lost: {reason}")
            case EpochWanted(begin):
                self._begin, self._phase = begin, Phase.GATHERING
                return self._form()
            case EpochOver():
                self._phase = Phase.OVER
                return []

    # --- epochs ------------------------------------------------------------------------------------------------------

    @property
    def _epoch(self) -> Epoch:
        return Epoch(0) if self._begin is None else self._begin.epoch

    def _form(self) -> list[Action]:
        if self._phase is not Phase.GATHERING or self.missing_ranks:
            return []
        assert self._begin is not None
        self._phase = Phase.FORMING
        self._new_epoch()
        return self._tell_all(self._begin)

    def _ready_rank(self, rank: int) -> list[Action]:
        self._ready.add(rank)
        if self._phase is not Phase.FORMING or len(self._ready) < len(self._ranks):  # [epoch-after-rendezvous]
            return []
        self._phase = Phase.WORKING
        return [Hello(self._epoch)]

    def _end(self, reason: str) -> list[Action]:
        if self._phase not in (Phase.FORMING, Phase.WORKING):
            return []
        self._phase = Phase.OVER
        return [EndEpoch(self._epoch, reason)]

    def _tell_all(self, message: ToRank) -> list[Action]:
        """The leader's own rank comes last: what is passed on is on its way before it takes effect here."""
        return [Tell(rank, message) for rank in reversed(self._ranks)]

    # --- what the ranks say ------------------------------------------------------------------------------------------

    def _said(self, rank: int, message: FromRank) -> list[Action]:
        if message.epoch != self._epoch or self._phase not in (Phase.FORMING, Phase.WORKING):
            return []
        match message:
            case Ready():
                return self._ready_rank(rank)
            case Copied(_, command_number):
                return self._copied(rank, command_number)
            case Ran():
                return self._ran(rank, message)
            case Prepared(_, job_id):
                if job_id in self._guides:
                    self._guides[job_id] = True
                return self._start()
            case Scored(_, prompt):
                self._scored.append(prompt)
                return []
            case Failed(_, reason):
                return self._end(f"rank {rank}: {reason}")

    def _copied(self, rank: int, command_number: CommandNumber) -> list[Action]:
        copying = self._copying.get(command_number, set())
        copying.discard(rank)
        if copying or command_number not in self._copying:  # [all-ranks-done]
            return []
        del self._copying[command_number]
        return [Acknowledge(Done(command_number))]

    def _ran(self, rank: int, message: Ran) -> list[Action]:
        one = next((one for one in self._under_way if one.plan.plan_number == message.plan_number), None)
        if one is None or rank in one.outcomes:
            raise ProtocolError(f"rank {rank} ran plan {message.plan_number}, which is not under way there")
        one.outcomes[rank] = message.outcome
        if rank == self._sampling_rank:
            one.scored, self._scored = self._scored, []
        self._counters[rank] = message.counters
        actions: list[Action] = []
        if rank == self._sampling_rank:
            self._ledger.take(message.plan_number, message.outcome.tokens)
            actions += self._start()
        if len(one.outcomes) == len(self._ranks):
            self._under_way.remove(one)
            actions.append(Report(self._result(one)))
        return actions

    def _result(self, one: _PlanUnderWay) -> WorkerResult:
        """The plan took the compute of its stages, one after another; a stage is as slow as its slowest rank."""
        outcomes, plan = one.outcomes, one.plan
        duration_s = sum(max(outcomes[rank].compute_s for rank in stage) for stage in self._stages)
        sampled = outcomes[self._sampling_rank]
        result = IterationResult(plan.epoch, plan.plan_number, sampled.tokens, one.unready, duration_s)
        counters = counters_of_group(tuple(self._counters.values()))
        return WorkerResult(result, sampled.logprobs, counters, sampled.failures, tuple(one.scored))

    # --- what scheduler and KV manager send --------------------------------------------------------------------------

    def _plan_taken(self, plan: Plan) -> list[Action]:
        if self._phase is not Phase.WORKING or plan.epoch != self._epoch:
            return []
        if len(self._waiting) >= MOST_WAITING_PLANS:
            raise ProtocolError(f"{MOST_WAITING_PLANS} plans wait to be run")
        if any(entry.cut_after_s is not None for entry in plan.entries):
            raise ProtocolError(f"plan {plan.plan_number} limits a prefill, which a group of ranks can't give up")
        self._waiting.append(plan)
        return [*self._ask_for_guides(plan), *self._start()]

    def _plans_recalled(self, first_number: PlanNumber) -> list[Action]:
        """Plans that are not steps yet go back."""
        if self._phase is not Phase.WORKING:
            return []
        given_back: PlanNumber | None = None
        while self._waiting and self._waiting[-1].plan_number >= first_number:
            given_back = self._waiting.pop().plan_number
        return [GiveBack(PlansGivenBack(self._epoch, given_back))]

    def _ask_for_guides(self, plan: Plan) -> list[Action]:
        asked: list[Action] = []
        for entry, guide in guided_starts(plan):
            if entry.job_id not in self._guides:
                self._guides[entry.job_id] = False
                wanted = PrepareGuide(plan.epoch, entry.job_id, guide, tuple(output_of(entry)))
                asked.append(Tell(self._sampling_rank, wanted))
        return asked

    def _start(self) -> list[Action]:
        """Plans in order, each as soon as the tokens that it goes on from are known."""
        actions: list[Action] = []
        while self._waiting and not self._ledger.waits(plan := self._waiting[0]):
            starts = [entry.job_id for entry, _ in guided_starts(plan)]
            unready = tuple(job_id for job_id in starts if not self._guides.get(job_id))
            if unready and len(unready) == len(plan.entries) and len(self._waiting) == 1:
                break
            for job_id in starts:
                if job_id not in unready:
                    del self._guides[job_id]
            self._waiting.popleft()
            self._under_way.append(_PlanUnderWay(plan, unready))
            actions += self._tell_all(Run(plan.epoch, self._ledger.step_of(plan, unready)))
        return actions

    def _command_taken(self, command: KvToWorker) -> list[Action]:
        if self._phase is not Phase.WORKING:
            return []
        if isinstance(command, ReleaseBlocks):
            self._ledger.forget(command.job_id)
            self._guides.pop(command.job_id, None)
        if has_copies(command):
            self._copying[command.command_number] = set(self._ranks)
        return [
            *self._tell_all(Relayed(self._epoch, command)),  # [relay-order]
            Acknowledge(Applied(command.command_number)),
        ]

    def state_key(self) -> Hashable:
        """Everything that determines what the machine will do."""
        under_way = tuple((one.plan.plan_number, tuple(sorted(one.outcomes))) for one in self._under_way)
        copying = tuple((number, tuple(sorted(ranks))) for number, ranks in self._copying.items())
        waiting = tuple(plan.plan_number for plan in self._waiting)
        ledger = repr(self._ledger)
        return (
            self._phase,
            self._begin,
            frozenset(self._joined),
            frozenset(self._ready),
            waiting,
            under_way,
            copying,
            ledger,
            tuple(self._guides.items()),
            len(self._scored),
        )
