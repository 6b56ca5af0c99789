"""The configuration of the scheduler's machine and policy."""

from dataclasses import dataclass
from enum import StrEnum


class PolicyName(StrEnum):
    """Which jobs run next. Each policy is described in its module in services.scheduler.policies."""

    STATIC = "static"
    FCFS = "fcfs"
    MLFQ = "mlfq"
    MLFQ_KILL = "mlfq-kill"
    FIXED_PRIORITY = "fixed-priority"
    SKIP_JOIN_MLFQ = "skip-join-mlfq"
    SRPT = "srpt"
    GITTINS = "gittins"


class LengthPredictor(StrEnum):
    """How policy gittins tells jobs apart whose output lengths it learns: by classes of what is known of them (off; see
    services.scheduler.policies.length_classes), or by a prediction from it (online; length_prediction).
    """

    OFF = "off"
    ONLINE = "online"


class Charge(StrEnum):
    """What an iteration costs each of its jobs: the whole time (as in the papers), or the job's own share."""

    WALL = "wall"
    MARGINAL = "marginal"


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`chooses_batch`: `max_batch`, by default the papers' (PAPER 5), is the least, and holds until a worker's profile
    says what is best (services.scheduler.policies.batch_limit). `prefill_chunk_tokens` None: a prefill is one entry.
    `starvation_limit_s` None: no job is promoted.

    `demotion_levels` is the paper's eta. `silence_limit_s`, `first_token_limit_s`, `per_token_limit_s` and
    `first_token_share` are those of services.scheduler.machine.lending; a limit of None: nothing is lent for it. Queued
    tokens are the prompt tokens plus max_tokens of all admitted jobs that have not ended.
    """

    policy: PolicyName = PolicyName.GITTINS
    max_batch: int = 16
    chooses_batch: bool = False
    max_batch_tokens: int = 2048
    prefill_chunk_tokens: int | None = None
    plans_in_flight: int | None = None
    quantum_ratio: float = 2.0
    demotion_levels: int = 1
    starvation_limit_s: float | None = 10.0
    promotions_per_step: int = 1
    silence_limit_s: float | None = 1.5
    first_token_limit_s: float | None = 1.5
    per_token_limit_s: float | None = 0.1
    first_token_share: float = 0.05
    length_predictor: LengthPredictor = LengthPredictor.OFF
    charge: Charge = Charge.WALL
    max_queued_jobs: int = 20_000
    max_queued_tokens: int = 16_000_000

    def __post_init__(self) -> None:
        assert 1 <= self.max_batch <= self.max_batch_tokens, "a full batch of decodes must fit the token budget"
        assert min(self.plans_in_flight or 1, self.demotion_levels, self.promotions_per_step) >= 1
        assert self.quantum_ratio > 1.0, "levels must differ"
        assert self.prefill_chunk_tokens is None or self.prefill_chunk_tokens >= 1
