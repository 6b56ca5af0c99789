"""Attention over a paged KV cache: what its implementations share, and the interface that the decoder sees.

Theory of operation
-------------------
Every layer first writes the new rows' K and V into the pool, then each row attends to its sequence's positions up to
its own.

Seen as rows of K * E numbers, the pool [N, L, 2, O, K, E] is a flat matrix: position `slot` of layer l has its K in row
((block * L + l) * 2) * O + offset and its V O rows later, so that writing is one indexed copy. Seen as rows of O * K *
E numbers it is a matrix of pages, and gathering a sequence's cache into one piece is one index_select of whole pages.
The next layer's rows and pages are a fixed step on.

K and V that float16 can't hold are stored as the nearest number that it can. A row reads more than it looks at: padding
of its block table, places of a reused block that an earlier job has written. A mask gives those the weight 0, and 0
times a finite number is 0, but 0 times infinity is NaN: one job's overflow would reach every job that reads its pages.

What a pass needs in every layer alike (indices, masks, groups of sequences) is made once, by `begin`.

Shape legend: T rows, H query heads, K kv heads, E head size; N, L, O as in batch.py.
"""

from typing import Protocol

import torch
from torch import Tensor

from services.worker.model.batch import BatchLayout, PagedKv

PAGES_PER_LAYER = 2
"""A block's pages of one layer: K, then V."""


class AttentionPass(Protocol):
    """The attention of one forward pass."""

    def attend(self, layer: int, query_THE: Tensor, key_value_T2KE: Tensor) -> Tensor:
        """Writes the rows' K and V into the pool, then returns the attention of each row's query, [T, H * E]."""
        ...


class Attention(Protocol):
    """A way to compute attention on one kind of device. It may keep buffers between passes: one pass at a time."""

    def begin(self, batch: BatchLayout, cache: PagedKv) -> AttentionPass:
        """Prepares a pass over these rows."""
        ...


class PoolRows:
    """A pool as flat rows and pages, and where a batch's rows go."""

    def __init__(self, batch: BatchLayout, cache: PagedKv) -> None:
        _, self.layer_count, _, block_size, kv_head_count, head_dim = cache.pool.shape
        width = kv_head_count * head_dim
        self.rows = cache.pool.view(-1, width)
        self.pages = cache.pool.view(-1, block_size * width)
        self.row_step = PAGES_PER_LAYER * block_size
        blocks = torch.div(batch.slots_T, block_size, rounding_mode="floor")
        keys_T = blocks * ((self.layer_count - 1) * self.row_step + block_size) + batch.slots_T
        self.row_index = torch.stack((keys_T, keys_T + block_size), dim=1).view(-1)

    def write(self, layer: int, key_value_T2KE: Tensor) -> None:
        """Stores the K and V of the batch's rows, which it may change."""
        if self.rows.dtype == torch.float16:
            key_value_T2KE.nan_to_num_()
        self.rows.index_copy_(0, self.row_index + layer * self.row_step, key_value_T2KE.reshape(-1, self.rows.shape[1]))

    def page_index(self, block_table: Tensor) -> Tensor:
        """Layer 0's K pages, then V pages, of a table of blocks: [2, *table]. Add 2 for each further layer."""
        keys = block_table * (self.layer_count * PAGES_PER_LAYER)
        return torch.stack((keys, keys + 1))


def group_cuts(lengths: list[int], cost_positions: int) -> list[int]:
    """Ends of the groups that a falling list of lengths is cut into: where the padding saved is worth another group,
    which costs as much as `cost_positions` positions.
    """
    cuts: list[int] = []
    open_ranges = [(0, len(lengths))] if lengths else []
    while open_ranges:
        first, stop = open_ranges.pop()
        saved, cut = max(((lengths[first] - lengths[at]) * (stop - at), at) for at in range(first, stop))
        if saved > cost_positions:
            open_ranges += [(first, cut), (cut, stop)]
        else:
            cuts.append(stop)
    return sorted(cuts)


def bounded_cuts(lengths: list[int], cost_positions: int, most_positions: int) -> list[int]:
    """Like `group_cuts`, with at most `most_positions` in a group, padding included; a longer sequence has a group to
    itself.
    """
    cuts: list[int] = []
    first = 0
    for stop in group_cuts(lengths, cost_positions):
        while first < stop:
            first = min(stop, first + max(1, most_positions // lengths[first]))
            cuts.append(first)
    return cuts


def visible(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Whether a query may look at a key: none later than itself, none `window` or more positions back. Broadcasts."""
    seen = key_positions <= query_positions
    return seen if window is None else seen & (key_positions > query_positions - window)
