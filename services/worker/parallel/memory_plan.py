"""What a layout needs of every rank's memory, and which layout is the smallest that has it. No torch, no measurement.

Theory of operation
-------------------
A rank holds the weights of its share; of the memory left, KV may take what pools.py gives it, and activations have the
rest. Every rank of a group has a part of every KV block, so the group has as many blocks as its poorest rank. A layout
fits if these hold one job of the length asked for.

The group splits layers by measured seconds. Here they are split by the weights that a decode reads, which is what its
seconds mostly are, so that the group may place a layer more or less in a stage than this plan.

The smallest layout is that of the fewest ranks. Among equals the one with more ranks a stage wins, up to
RANKS_OF_A_MACHINE: these take part in every token of a job, stages take turns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate

from services.worker.kv.pool_sizes import affordable_blocks, kv_bytes
from services.worker.model.model_config import ModelConfig
from services.worker.model.parameter_counts import parameter_counts
from services.worker.parallel.layout import (
    MOST_RANKS,
    GroupRank,
    Layout,
    possible_tp,
    share_config,
)

VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
RANKS_OF_A_MACHINE = 8
"""GPUs of a usual machine. A stage stays in one, since its ranks sum what they compute twice a layer."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What ranks have, and what is to fit: `gpu_bytes` free on each, numbers of `value_bytes`, blocks of `block_size`
    tokens, one job of `length` tokens.
    """

    gpu_bytes: int
    value_bytes: int
    block_size: int
    length: int

    @property
    def blocks_of_a_job(self) -> int:
        return -(-self.length // self.block_size)


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank: its layers, its weights, and how many KV blocks it has room for. `job_kv_bytes` is its part of the KV
    of one job, whole blocks.
    """

    rank: GroupRank
    layers: range
    weight_bytes: int
    block_bytes: int
    block_count: int
    job_kv_bytes: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A layout and its ranks, in order."""

    layout: Layout
    memory: Memory
    ranks: tuple[RankPlan, ...]

    @property
    def block_count(self) -> int:
        """Blocks of the group: each needs its part on every rank."""
        return min(rank.block_count for rank in self.ranks)

    @property
    def poorest(self) -> RankPlan:
        """The rank with the least room for blocks; the first of several."""
        return min(self.ranks, key=lambda rank: rank.block_count)

    @property
    def heaviest(self) -> RankPlan:
        """The rank with the most weights; the first of several."""
        return max(self.ranks, key=lambda rank: rank.weight_bytes)

    @property
    def fits(self) -> bool:
        """Whether weights and KV of one job have room."""
        return self.block_count >= self.memory.blocks_of_a_job

    @property
    def job_count(self) -> int:
        """Jobs of the length asked for whose KV fits at a time."""
        return self.block_count // self.memory.blocks_of_a_job


def plan_group(config: ModelConfig, layout: Layout, memory: Memory) -> GroupPlan:
    """What every rank holds. The layout is one that `check_layout` accepts."""
    return GroupPlan(layout, memory, tuple(_rank_plans(config, layout, memory)))


def _rank_plans(config: ModelConfig, layout: Layout, memory: Memory) -> Iterator[RankPlan]:
    stage_layers = layers_of_stages(config, layout.pp)
    for number in range(layout.rank_count):
        yield _plan_rank(config, GroupRank(number, layout), stage_layers, memory)


def _fits(config: ModelConfig, layout: Layout, memory: Memory) -> bool:
    """Whether every rank has room; the first that has not tells."""
    return all(rank.block_count >= memory.blocks_of_a_job for rank in _rank_plans(config, layout, memory))


def layers_of_stages(config: ModelConfig, pp: int) -> tuple[range, ...]:
    """What `split_layers` gives if layers, being all of one size, cost the same: one each, then each to the stage that
    has the least to read with it.
    """
    counts = parameter_counts(config)
    with_one_more = [((2 * counts.layer + counts.head * (stage == pp - 1)), stage) for stage in range(pp)]
    heapify(with_one_more)
    layer_counts = [1] * pp
    for _ in range(config.layer_count - pp):
        load, stage = with_one_more[0]
        heapreplace(with_one_more, (load + counts.layer, stage))
        layer_counts[stage] += 1
    return tuple(range(stop - count, stop) for stop, count in zip(accumulate(layer_counts), layer_counts, strict=True))


def _plan_rank(config: ModelConfig, rank: GroupRank, stage_layers: tuple[range, ...], memory: Memory) -> RankPlan:
    share = share_config(config, rank, stage_layers)
    weight_bytes = parameter_counts(share).total * memory.value_bytes
    block_bytes = memory.block_size * kv_bytes(
        share.layer_count, share.kv_head_count, share.head_dim, memory.value_bytes
    )
    return RankPlan(
        rank=rank,
        layers=stage_layers[rank.stage],
        weight_bytes=weight_bytes,
        block_bytes=block_bytes,
        block_count=affordable_blocks(memory.gpu_bytes - weight_bytes, block_bytes),
        job_kv_bytes=memory.blocks_of_a_job * block_bytes,
    )


def smallest_layout(config: ModelConfig, memory: Memory, most_tp: int = RANKS_OF_A_MACHINE) -> Layout | None:
    """The layout of the fewest ranks that fits, with at most `most_tp` ranks a stage; None if none does."""
    finest = [Layout(tp, min(config.layer_count, MOST_RANKS // tp)) for tp in possible_tp(config) if tp <= most_tp]
    layouts = [
        Layout(tp, pp)
        for tp in (each.tp for each in finest if _fits(config, each, memory))
        for pp in range(1, min(config.layer_count, MOST_RANKS // tp) + 1)
    ]
    weight_bytes = parameter_counts(config).total * memory.value_bytes
    for layout in sorted(layouts, key=lambda each: (each.rank_count, each.pp)):
        if layout.rank_count * memory.gpu_bytes > weight_bytes and _fits(config, layout, memory):
            return layout
    return None


def job_kv_bytes(config: ModelConfig, length: int, value_bytes: int) -> int:
    """KV of a job of `length` tokens, all of the model's layers and heads once (PAPER 3)."""
    return length * kv_bytes(config.layer_count, config.kv_head_count, config.head_dim, value_bytes)
