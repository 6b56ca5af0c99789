"""What a worker reports when it joins the scheduler and the KV manager."""

from dataclasses import dataclass
from typing import NamedTuple

from services.domain.cost import CostProfile
from services.domain.ids import Epoch
from services.domain.protocol import WorkerPools


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker reports when it joins the scheduler. `last_epoch` is the last one that it was given, 0 if none;
    `worker_id` is another one in each life of its process. `device` is "cpu" or the GPU's name.

    A worker of several ranks has `stage_count` pipeline stages; its blocks are those that every rank has, and
    `block_bytes` are those of all ranks together.
    """

    last_epoch: Epoch
    group: int
    model_fingerprint: str
    block_size: int
    device_blocks: int
    host_blocks: int
    max_model_len: int
    block_bytes: int
    profile: CostProfile
    device: str
    stage_count: int = 1
    rank_count: int = 1
    worker_id: str = ""


class WorkerDraining(NamedTuple):
    """The worker was told to end, and will in `limit_s` seconds at the latest."""

    limit_s: float


@dataclass(frozen=True, slots=True)
class KvWorkerFacts:
    group: int
    pools: WorkerPools
    block_bytes: int
