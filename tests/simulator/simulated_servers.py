"""Small servers to simulate, and jobs for them."""

from collections.abc import Sequence
from random import Random

from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.pipeline import Pipeline
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from services.simulator.outcome import JobOutcome, Simulation
from services.simulator.server_setup import ServerSetup, SimulatedJob
from tests.builders.cost_profiles import proportional_cost

PREFILL_S, DECODE_S = 0.001, 0.02
"""Seconds of a prompt token, and of a decode."""

FLAT_COST = proportional_cost(PREFILL_S, DECODE_S, least_tokens=20)
"""Prefill in proportion to its tokens, decode the same for every batch and context."""

GROWING_COST = CostProfile(
    (PrefillCost(16, 0.01), PrefillCost(256, 0.06), PrefillCost(1024, 0.3)),
    tuple(
        DecodeCost(batch, context, 0.01 + 1e-4 * batch + 1e-7 * batch * context)
        for batch in (1, 8, 16)
        for context in (16, 1024)
    ),
)
"""Like that of a GPU."""

FAST_LINK = LinkSpeed(bytes_per_s=1e9, latency_s=1e-4)
BIG_POOL_TOKENS = 1 << 20


def server(
    policy: PolicyName = PolicyName.SKIP_JOIN_MLFQ,
    kv_policy: str = "proactive",
    *,
    cost: CostProfile = FLAT_COST,
    device_tokens: int = BIG_POOL_TOKENS,
    host_tokens: int = BIG_POOL_TOKENS,
    link: LinkSpeed = FAST_LINK,
    stages: int = 1,
    groups: int = 1,
    hop_s: float = 0.0,
    slowdown: float = 1.0,
    overhead_s: float = 0.0,
    kv_bytes_per_token: int = 1000,
    pipeline: Pipeline | None = None,
    **knobs: object,
) -> ServerSetup:
    """A server without message delay by default. `knobs` are the scheduler's; none is planned ahead, as in
    `fastserve simulate`.
    """
    knobs = {"plans_in_flight": stages + 1} | knobs
    return ServerSetup(
        scheduler=SchedulerConfig(policy=policy, **knobs),  # type: ignore[arg-type]
        kv=KvConfig(kv_policy_named(kv_policy)),
        cost=cost,
        kv_bytes_per_token=kv_bytes_per_token,
        device_tokens=device_tokens,
        host_tokens=host_tokens,
        max_model_len=4096,
        link=link,
        stages=stages,
        groups=groups,
        hop_s=hop_s,
        slowdown=slowdown,
        overhead_s=overhead_s,
        pipeline=pipeline,
    )


def one_at_a_time(policy: PolicyName, kv_policy: str = "proactive", **given: object) -> ServerSetup:
    """Batch 1, one plan under way, no promotions: a queue with one server."""
    knobs: dict[str, object] = {"max_batch": 1, "plans_in_flight": 1, "starvation_limit_s": None} | given
    return server(policy, kv_policy, **knobs)  # type: ignore[arg-type]


def random_jobs(seed: int, count: int, rate_per_s: float, longest: int = 100) -> list[SimulatedJob]:
    """Poisson arrivals, heavy-tailed outputs."""
    random = Random(seed)
    at_s = 0.0
    jobs = []
    for number in range(count):
        at_s += random.expovariate(rate_per_s)
        output_tokens = min(int(random.paretovariate(1.1) * 4), longest)
        jobs.append(SimulatedJob(f"job-{number}/0", at_s, random.randint(1, longest), output_tokens))
    return jobs


def ended_s(outcome: JobOutcome) -> float:
    """When the client received its last token."""
    return outcome.token_times_s[-1]


def mean_jct_s(simulation: Simulation) -> float:
    """Mean job completion time."""
    outcomes: Sequence[JobOutcome] = simulation.outcomes
    return sum(ended_s(outcome) - outcome.arrival_s for outcome in outcomes) / len(outcomes)
