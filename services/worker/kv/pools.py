"""The two pools of KV blocks: on the compute device, and in the host's memory.

Theory of operation
-------------------
A block holds `block_size` positions of every layer, keys and values, in one piece of memory: `[block, layer, 2,
block_size, kv_head, head_dim]`. Moving a block is therefore one copy, and moving neighbours is one longer copy. The
same index means the same block on either side of the protocol: the KV manager hands the indices out, the worker only
looks up the memory.

Both pools are zeroed. Attention reads padded places of a block table and masks what it read; zeros, unlike whatever the
memory held before, can't turn a masked product into NaN. Nor can what jobs leave in their blocks, which is finite
(model/attention.py). On CUDA the host pool is pinned, so that copies run beside compute: as memory that is mapped here
and registered with CUDA, since torch's allocator of pinned memory rounds up to a power of two, beyond what was found
free.

How many blocks: what the settings ask for, bounded by memory. A size asked for that does not fit is an error; a
default is made to fit.
"""

import contextlib
import math
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.domain.errors import InvalidFieldError
from services.worker.kv.pool_sizes import MEMORY_SHARE, kv_bytes

DEFAULT_DEVICE_TOKENS = 32768
DEFAULT_HOST_FACTOR = 4


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What decides the memory of one block."""

    layer_count: int
    block_size: int
    kv_head_count: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        return self.block_size * kv_bytes(self.layer_count, self.kv_head_count, self.head_dim, self.dtype.itemsize)

    def pool_shape(self, block_count: int) -> tuple[int, int, int, int, int, int]:
        return (block_count, self.layer_count, 2, self.block_size, self.kv_head_count, self.head_dim)


@dataclass(frozen=True, slots=True)
class KvPools:
    """Both pools, [N, L, 2, O, K, E] each; `shape` is that of their blocks."""

    shape: BlockShape
    device: Tensor
    host: Tensor

    @property
    def device_block_count(self) -> int:
        return self.device.shape[0]

    @property
    def host_block_count(self) -> int:
        return self.host.shape[0]


def make_pools(shape: BlockShape, device_blocks: int, host_blocks: int, device: torch.device) -> KvPools:
    """Zeroed pools. Pools in host memory take pages from the system only when first used."""
    device_shape, host_shape = shape.pool_shape(device_blocks), shape.pool_shape(host_blocks)
    if device.type == "cpu":
        return KvPools(shape, _host_memory(device_shape, shape.dtype), _host_memory(host_shape, shape.dtype))
    device_pool = torch.zeros(device_shape, dtype=shape.dtype, device=device)
    with torch.cuda.device(device):
        return KvPools(shape, device_pool, pinned_memory(host_shape, shape.dtype))


class _Mapping(mmap.mmap):
    """Anonymous memory that may be pinned while it exists."""

    unpin: Callable[[], object] | None = None

    def __del__(self) -> None:  # comes before the memory is unmapped
        if self.unpin is not None:
            self.unpin()


def pinned_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeroed memory that the current GPU copies from and to by itself.

    Raises InvalidFieldError if CUDA or the system refuses to pin that much.
    """
    memory = _map(shape, dtype)
    tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = tensor.data_ptr()
    error = int(cudart.cudaHostRegister(address, len(memory), 0))
    if error != 0:
        raise InvalidFieldError("kv-host-tokens", f"CUDA can't pin {len(memory) >> 20} MiB of memory: error {error}")
    memory.unpin = partial(cudart.cudaHostUnregister, address)
    return tensor


def _host_memory(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeroed memory that takes no room before it is used, in huge pages where the system has them: a job's KV is
    scattered over the pool, and reading it would miss the page table's cache all the time.
    """
    return torch.frombuffer(_map(shape, dtype), dtype=dtype).view(shape)


def _map(shape: tuple[int, ...], dtype: torch.dtype) -> _Mapping:
    """Zeroed memory, in huge pages where the system has them."""
    memory = _Mapping(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


_CONTROL_GROUP = Path("/sys/fs/cgroup")
_CONTROL_GROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""The limit of the own control group and what it uses, as version 2 and version 1 name them."""


def available_host_bytes() -> int:
    """Bytes that this process may still take: those free in the system or left by its control group, whichever is
    less.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = (line.split() for line in meminfo.read_text().splitlines())
        free = next((int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"), free)
    for limit_name, used_name in _CONTROL_GROUP_FILES:
        limit, used = _CONTROL_GROUP / limit_name, _CONTROL_GROUP / used_name
        if limit.exists() and used.exists() and limit.read_text().strip() != "max":
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)


def available_device_bytes(device: torch.device) -> int:
    """Bytes that a device pool may still take."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return available_host_bytes()


def block_counts(
    shape: BlockShape,
    device: torch.device,
    device_tokens: int | None,
    host_tokens: int | None,
    device_bytes_free: int,
    host_bytes_free: int,
    workers_here: int = 1,
    rank_count: int = 1,
) -> tuple[int, int]:
    """Numbers of blocks of the device pool and of the host pool. Tokens of None: the default, made to fit.
    `workers_here` processes share the defaults and the memory; `rank_count` of them each hold their share of a token.

    Raises InvalidFieldError naming the flag, the memory it needs and the memory free.
    """
    share = MEMORY_SHARE / workers_here
    device_budget = int(device_bytes_free * (MEMORY_SHARE if device_tokens else share))
    default_tokens = max(DEFAULT_DEVICE_TOKENS * rank_count // max(workers_here, rank_count), shape.block_size)
    device_blocks = _blocks("kv-device-tokens", shape, device_tokens, default_tokens, device_budget)
    host_budget = int(host_bytes_free * (MEMORY_SHARE if host_tokens else share))
    if device.type == "cpu":  # both pools come out of the same memory
        host_budget -= device_blocks * shape.block_bytes
    default_host_tokens = DEFAULT_HOST_FACTOR * device_blocks * shape.block_size
    return device_blocks, _blocks("kv-host-tokens", shape, host_tokens, default_host_tokens, host_budget)


def _blocks(field: str, shape: BlockShape, tokens: int | None, default_tokens: int, budget_bytes: int) -> int:
    affordable = max(budget_bytes, 0) // shape.block_bytes
    wanted = (default_tokens if tokens is None else tokens) // shape.block_size
    if tokens is not None and wanted < 1:
        raise InvalidFieldError(field, f"must be at least one block of {shape.block_size} tokens, got {tokens}")
    if tokens is None:
        wanted = min(wanted, affordable)
    if wanted > affordable or wanted < 1:
        need_mib, free_mib = max(wanted, 1) * shape.block_bytes >> 20, max(budget_bytes, 0) >> 20
        raise InvalidFieldError(
            field, f"needs {need_mib} MiB of memory for {max(wanted, 1)} blocks; {free_mib} MiB may be used"
        )
    return wanted
