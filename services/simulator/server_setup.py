"""What is simulated: a server with its knobs, its cost model and its pools, and the jobs that come to it."""

from dataclasses import dataclass
from math import inf

from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile
from services.domain.errors import InvalidFieldError
from services.kvmanager.policies.kv_config import KvConfig
from services.scheduler.scheduler_config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job of a trace. Its length is forced: it makes `output_tokens` tokens, whatever the policy.

    `max_tokens` is what scheduler and KV manager are told; None: the length itself, and the job ends by it. With a
    greater one the job ends by a stop token, which nobody knows beforehand. `cancel_s` is when its client leaves.
    Times are seconds on the virtual clock, which begins at 0.
    """

    job_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cancel_s: float | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.arrival_s < inf:
            raise InvalidFieldError("arrival_s", f"must be 0 or more, job {self.job_id} has {self.arrival_s}")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise InvalidFieldError(
                "output_tokens", f"job {self.job_id} needs a prompt token and an output token at least"
            )
        if self.max_tokens is not None and self.max_tokens < self.output_tokens:
            raise InvalidFieldError("max_tokens", f"must be at least the output's tokens, job {self.job_id} has less")
        if self.cancel_s is not None and not self.arrival_s <= self.cancel_s < inf:
            raise InvalidFieldError(
                "cancel_s", f"must not be before the arrival, job {self.job_id} has {self.cancel_s}"
            )

    @property
    def most_output_tokens(self) -> int:
        """What scheduler and KV manager reckon with."""
        return self.output_tokens if self.max_tokens is None else self.max_tokens


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """A server: `groups` worker groups of `stages` pipeline stages each.

    `cost` is that of the whole model, as is `kv_bytes_per_token`: each of the stages takes its equal share of an
    iteration's time and of the KV. Pools are those of one group: `device_tokens` and `host_tokens` of KV.
    `hop_s` is the delay of every message between two services, and between a gateway and the scheduler. An iteration
    takes the worker `slowdown` times what `cost` says: the scheduler reckons with a profile that was measured on an
    idle machine, and in service other threads and processes want the same cores, caches and memory.

    More than one group is a split of the workload, not a routing policy: that many schedulers, KV managers and
    workers, which know nothing of each other, and the jobs dealt out to them in turn by their arrival.
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

    def __post_init__(self) -> None:
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
                raise InvalidFieldError(field, f"must be at least {least}, is {value}")
        if not 0.0 <= self.hop_s < inf:
            raise InvalidFieldError("hop_s", "must be 0 or more")
        if not 0.0 < self.slowdown < inf:
            raise InvalidFieldError("slowdown", "must be above 0")

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
        """What one stage holds of a block."""
        return self.block_size * self.kv_bytes_per_token / self.stages
