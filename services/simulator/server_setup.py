"""What is simulated: a server with its configuration, cost model and pools, and the jobs that it serves."""

from dataclasses import dataclass
from math import inf

from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile
from services.domain.errors import InvalidFieldError
from services.domain.pipeline import Pipeline
from services.kvmanager.policies.kv_config import KvConfig
from services.scheduler.scheduler_config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job of a trace. Its length is forced: it makes `output_tokens` tokens under every policy.

    `max_tokens` is the value that scheduler and KV manager see; None: `output_tokens`, at which the job ends. If it is
    greater, the job ends with a stop token, which is not known beforehand. `cancel_s` is when the client leaves. Times
    are seconds on the virtual clock, which starts at 0. `client_number`: see services.domain.submission.
    """

    job_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cancel_s: float | None = None
    max_tokens: int | None = None
    client_number: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.arrival_s < inf:
            raise InvalidFieldError("arrival_s", f"must be at least 0, but job {self.job_id} has {self.arrival_s}")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise InvalidFieldError(
                "output_tokens", f"job {self.job_id} must have at least one prompt token and one output token"
            )
        if self.max_tokens is not None and self.max_tokens < self.output_tokens:
            raise InvalidFieldError(
                "max_tokens",
                f"must be at least output_tokens ({self.output_tokens}), but job {self.job_id} has {self.max_tokens}",
            )
        if self.cancel_s is not None and not self.arrival_s <= self.cancel_s < inf:
            raise InvalidFieldError(
                "cancel_s",
                f"must not be before arrival_s ({self.arrival_s}), but job {self.job_id} has {self.cancel_s}",
            )

    @property
    def most_output_tokens(self) -> int:
        """The max_tokens that scheduler and KV manager see."""
        return self.output_tokens if self.max_tokens is None else self.max_tokens


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """A server with `groups` worker groups of `stages` pipeline stages each.

    `cost` and `kv_bytes_per_token` are those of the whole model: each stage has an equal share of the KV, and takes its
    share of an iteration's time according to `pipeline`. Then hidden states need their time from stage to stage, and
    tokens `hop_s` from the last stage to the first. Without a `pipeline` shares are equal, and nothing is between
    stages. The pools are those of one group: `device_tokens` and `host_tokens` of KV. `hop_s` is the delay of
    every message between two services, and between a gateway and the scheduler. On the worker an iteration takes
    `slowdown` times as long as `cost` says: the scheduler uses a profile that was measured on an idle machine, while in
    service other threads and processes compete for cores, caches and memory. `overhead_s` is what an iteration costs
    every stage besides, however much it computes: the processor time of services that share the stages' cores.
    `scheduler.plans_in_flight` must be given: no plan is made ahead that would have to be recalled.

    Several groups share the workload: there are as many schedulers, KV managers and workers, and before them the
    router that serves.
    """

    scheduler: SchedulerConfig
    kv: KvConfig
    cost: CostProfile
    kv_bytes_per_token: int
    device_tokens: int
    host_tokens: int
    max_model_len: int
    link: LinkSpeed
    block_size: int = 16
    stages: int = 1
    groups: int = 1
    hop_s: float = 0.0003
    slowdown: float = 1.0
    overhead_s: float = 0.0
    pipeline: Pipeline | None = None

    def __post_init__(self) -> None:
        if self.scheduler.plans_in_flight is None:
            raise InvalidFieldError("plans_in_flight", "must be given: a simulated worker gives no plans back")
        if self.pipeline is not None and self.pipeline.stages != self.stages:
            raise InvalidFieldError("pipeline", f"has {self.pipeline.stages} stages, but the server {self.stages}")
        for field, value, least in (
            ("kv_bytes_per_token", self.kv_bytes_per_token, 1),
            ("block_size", self.block_size, 1),
            ("device_tokens", self.device_tokens, self.block_size),
            ("host_tokens", self.host_tokens, 0),
            ("max_model_len", self.max_model_len, 2),
            ("stages", self.stages, 1),
            ("groups", self.groups, 1),
        ):
            if value < least:
                raise InvalidFieldError(field, f"must be at least {least}, but is {value}")
        if not 0.0 <= self.hop_s < inf:
            raise InvalidFieldError("hop_s", f"must be at least 0, but is {self.hop_s}")
        if not 0.0 <= self.overhead_s < inf:
            raise InvalidFieldError("overhead_s", f"must be at least 0, but is {self.overhead_s}")
        if not 0.0 < self.slowdown < inf:
            raise InvalidFieldError("slowdown", f"must be greater than 0, but is {self.slowdown}")

    @property
    def device_blocks(self) -> int:
        """Blocks of a group's device pool."""
        return self.device_tokens // self.block_size

    @property
    def host_blocks(self) -> int:
        """Blocks of a group's host pool."""
        return self.host_tokens // self.block_size

    @property
    def stage_block_bytes(self) -> float:
        """The bytes of a block that one stage holds."""
        return self.block_size * self.kv_bytes_per_token / self.stages
