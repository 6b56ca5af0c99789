"""What is explored: sizes, policies, and the mishaps that may happen, each at any moment."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.ids import JobId
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.scheduler.machine.plan_lead import PlanLead
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import Submit
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.builders.cost_profiles import flat_cost

FLAT_PROFILE = flat_cost(1.0)
"""Every iteration takes a second, and so the highest level's quantum is one iteration."""

STEEP_PROFILE = CostProfile(
    prefill=(PrefillCost(1, 1.0), PrefillCost(2, 2.0)), decode=(DecodeCost(1, 1, 1.0), DecodeCost(1, 2, 1.0))
)
"""A prefill takes a second per token, so one of two tokens exceeds the highest level's quantum."""


@dataclass(frozen=True, slots=True)
class JobSize:
    """Tokens of a job. `is_guided`: its first entry may be passed over, because its guide is not compiled yet."""

    prompt_tokens: int
    max_tokens: int
    is_guided: bool = False


class _Ahead(PlanLead):
    """So many plans under way at least, and so many at most: no time passes here by which that could be chosen."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(None)
        self._least, self._most = least, most

    @property
    def least(self) -> int:
        return self._least

    def most(self, jobs: int, now_s: float) -> int:
        return self._most


def choices(jobs: Sequence[JobId]) -> list[tuple[JobId, ...]]:
    """All subsets."""
    return [some for count in range(len(jobs) + 1) for some in combinations(jobs, count)]


@dataclass(frozen=True, slots=True)
class Instance:
    """One small world.

    late_arrivals: jobs arrive at any moment, in order; else all at the start. cancels: jobs that may be cancelled.
    again: jobs that, once cancelled and released, may be submitted once more under the same id. moves: times that a
    job may leave for another group; it comes back from there as it left. holds: times that a job may be held, because
    the worker is about to end; it leaves then, and comes back. early_ends: jobs that
    may end before max_tokens. kills: times that the worker may die; of a group of ranks, times that one of them may die
    that is not the leader. breaks: times that the stream between scheduler and KV manager may break. waits: times that
    the starvation limit may pass. passes: times that a guide may not be ready. merged_turns: a machine may also find
    what waits from both its peers in one turn. plans_ahead: how many of `plans_in_flight` may be recalled. stages,
    ranks_per_stage: the worker is a group of as many ranks.
    """

    jobs: tuple[JobSize, ...]
    device_blocks: int
    host_blocks: int
    block_size: int = 1
    profile: CostProfile = FLAT_PROFILE
    policy: PolicyName = PolicyName.SKIP_JOIN_MLFQ
    kv_policy: str = "proactive"
    max_batch: int = 1
    plans_in_flight: int = 2
    lookahead_tokens: int = 0
    grant_blocks: int = 1
    reserve_share: float = 0.5
    idle_slots: int = 1
    protected_plans: int = 1
    prefill_chunk_tokens: int | None = None
    late_arrivals: bool = False
    cancels: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    moves: int = 0
    holds: int = 0
    early_ends: frozenset[int] = frozenset()
    kills: int = 0
    breaks: int = 0
    waits: int = 0
    passes: int = 0
    merged_turns: bool = False
    plans_ahead: int = 0
    stages: int = 1
    ranks_per_stage: int = 1

    @property
    def rank_count(self) -> int:
        return self.stages * self.ranks_per_stage

    @property
    def starvation_limit_s(self) -> float | None:
        """Any value will do: time advances only by whole limits."""
        return 100.0 if self.waits else None

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        """a, b, c, ..."""
        return tuple(JobId(chr(ord("a") + number)) for number in range(len(self.jobs)))

    def guided_among(self, job_ids: Sequence[JobId]) -> int:
        """How many of these have a guide."""
        return sum(self.jobs[self.job_ids.index(job_id)].is_guided for job_id in job_ids)

    def may_be_cut(self, job_ids: Sequence[JobId], ended: Sequence[JobId], passed_over: int) -> list[JobId]:
        """Those of a plan's prefills that may still be given up, after so many that were passed over."""
        left = [job_id for job_id in job_ids if job_id not in ended]
        return left if passed_over < self.passes else [one for one in left if not self.guided_among((one,))]

    def submit_of(self, number: int) -> Submit:
        """A job's arrival."""
        size = self.jobs[number]
        return Submit(self.job_ids[number], size.prompt_tokens, size.max_tokens, is_guided=size.is_guided)

    def make_scheduler(self) -> Scheduler:
        """The real scheduler."""
        scheduler = Scheduler(
            SchedulerConfig(
                policy=self.policy,
                max_batch=self.max_batch,
                max_batch_tokens=64,
                prefill_chunk_tokens=self.prefill_chunk_tokens,
                plans_in_flight=self.plans_in_flight,
                starvation_limit_s=self.starvation_limit_s,
            )
        )
        if self.plans_ahead:
            scheduler.iterations.lead = _Ahead(self.plans_in_flight - self.plans_ahead, self.plans_in_flight)
        return scheduler

    def make_manager(self) -> KvManager:
        """The real KV manager."""
        policy = kv_policy_named(self.kv_policy, self.idle_slots, self.reserve_share)
        return KvManager(
            KvConfig(
                policy,
                lookahead_tokens=self.lookahead_tokens,
                grant_blocks=self.grant_blocks,
                protected_plans=self.protected_plans,
            )
        )


def scheduler_key(machine: Scheduler) -> tuple[object, ...]:
    """Names of ranks count here, unlike in the machine's own key: the KV manager knows them."""
    ranks = tuple((job.job_id, job.rank, job.place, job.starvation_timer) for job in machine.jobs.values())
    timers = tuple(sorted(entry[:2] for entry in machine.promotion._timers._heap))
    return (machine.state_key(), ranks, getattr(machine.policy, "_joins", 0), timers, machine._arrivals)
