"""The process groups of an epoch: a device mesh (pp, tp) over all ranks, met at a store that the leader serves.

Gloo carries what is exchanged on CPUs, NCCL on GPUs. The groups of an epoch are named after it, so that a rank of an
earlier one can't join, and are destroyed as a whole: an epoch ends for all ranks.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store

from services.domain.ids import Epoch
from services.worker.parallel.layout import GroupRank
from services.worker.parallel.shared_memory_sums import meet_in_memory
from services.worker.parallel.stage_links import GroupSums, StageLinks, Sums


def rendezvous(
    store: Store,
    rank: GroupRank,
    epoch: Epoch,
    device: torch.device,
    meet_limit_s: float,
    wait_limit_s: float,
    sums_in_memory: bool = True,
) -> StageLinks:
    """Joins the groups of an epoch, when all ranks do; a process is in one epoch at a time. `wait_limit_s` bounds every
    wait afterwards. `sums_in_memory`: ranks of a stage that can share memory sum there; the same on all ranks.

    Raises RuntimeError if not all ranks come within `meet_limit_s`.
    """
    leave()
    layout = rank.layout
    met = PrefixStore(f"epoch/{epoch}", store)
    met.set_timeout(timedelta(seconds=meet_limit_s))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=met,
        rank=rank.number,
        world_size=layout.rank_count,
        timeout=timedelta(seconds=meet_limit_s),
    )
    mesh = init_device_mesh(device.type, (layout.pp, layout.tp), mesh_dim_names=("pp", "tp"))
    activations = dist.group.WORLD
    assert activations is not None, "it was just made"
    sums: Sums | None = None
    if layout.tp > 1:
        in_memory = meet_in_memory(met, rank, wait_limit_s) if sums_in_memory and device.type == "cpu" else None
        sums = in_memory or GroupSums(mesh.get_group("tp"), wait_limit_s)
    return StageLinks(rank, met, activations, sums, wait_limit_s)


def leave() -> None:
    """Destroys the groups of the last epoch, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
