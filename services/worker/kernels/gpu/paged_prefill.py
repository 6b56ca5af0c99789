"""Attention of prefills and chunks on a GPU, by Triton: keys and values are read where they lie in the pool.

Theory of operation
-------------------
A program has one kv head and a tile of neighbouring rows of one sequence, with the query heads that share the kv head:
all rows and heads of the tile are the rows of its products. It walks the positions that its rows see in chunks, as
paged_decode.py does, from the first that the window of its first row reaches to its last row's own. All sequences of a
batch are one launch; which rows a tile has is read on the device (attention_work.py), so that a launch depends on the
room for tiles alone, as recorded passes need it (recorded_decoder.py).

Shape legend: T rows, X tiles, S sequences, P pages of a table, H query heads, K kv heads, G = H / K, E head size; the
pool is [N, L, 2, O, K, E] (model/batch.py).
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.kernels.gpu.attention_work import CHUNK, tile_rows

LEAST_ROWS = 16
"""Rows of a product at least, which is what tensor cores multiply."""


def paged_prefill(
    query_THE: Tensor,
    pool: Tensor,
    layer: int,
    tiles_X4: Tensor,
    block_table_SP: Tensor,
    window: int | None,
    found_TX: Tensor,
) -> None:
    """Attention of the rows of these tiles (attention_work.py), into their rows of `found_TX`, [T, H * E], which is
    contiguous. The rows' own K and V are in the pool already. The index tensors are int64. A row of `query_THE` is
    contiguous.
    """
    _, heads, head_size = query_THE.shape
    _, layer_count, _, block_size, kv_heads, _ = pool.shape
    group = heads // kv_heads
    tile = tile_rows(group, query_THE.dtype)
    rows = max(LEAST_ROWS, triton.next_power_of_2(tile * group))
    _attend_tile[(kv_heads, tiles_X4.shape[0])](
        query_THE,
        pool,
        tiles_X4,
        block_table_SP,
        found_TX,
        1 / math.sqrt(head_size),
        layer,
        0 if window is None else window,
        block_table_SP.stride(0),
        query_THE.stride(0),
        layer_count,
        block_size,
        kv_heads,
        group,
        head_size,
        rows,
        triton.next_power_of_2(head_size),
        CHUNK,
        num_warps=4,
        num_stages=2 if query_THE.dtype == torch.float32 else 3,  # as shared memory allows
    )


@triton.jit(do_not_specialize=["layer", "window", "table_step"])  # type: ignore[untyped-decorator]
def _attend_tile(  # type: ignore[no-untyped-def]
    query_THE,
    pool,
    tiles_X4,
    block_table_SP,
    found_TX,
    scale,
    layer,
    window,
    table_step,
    query_step,
    LAYERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The attention of one tile's rows for the query heads of one kv head."""
    head, tile = tl.program_id(0), tiles_X4 + tl.program_id(1) * 4
    count = tl.load(tile + 3).to(tl.int32)
    if count == 0:
        return
    sequence, first_row, first_position = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2).to(tl.int32)
    begin = tl.where(window > 0, tl.maximum(first_position - window + 1, 0), 0)
    stop = first_position + count

    row, column, place = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    position = first_position + row // GROUP
    is_there = (position < stop)[:, None] & (column[None, :] < HEAD_SIZE)
    query_row, query_head = first_row + row // GROUP, head * GROUP + row % GROUP
    at_query = query_row * query_step + query_head * HEAD_SIZE
    query = tl.load(query_THE + at_query[:, None] + column[None, :], mask=is_there, other=0.0)
    greatest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_values = BLOCK_SIZE * KV_HEADS * HEAD_SIZE
    for start in range(begin, stop, CHUNK):
        seen = start + place
        is_seen = seen < stop
        block = tl.load(block_table_SP + sequence * table_step + seen // BLOCK_SIZE, mask=is_seen, other=0)
        at = (block * LAYERS + layer) * 2 * to_values
        at += (seen % BLOCK_SIZE) * (KV_HEADS * HEAD_SIZE) + head * HEAD_SIZE
        address, is_kept = pool + at[:, None] + column[None, :], is_seen[:, None] & (column[None, :] < HEAD_SIZE)
        keys = tl.load(address, mask=is_kept, other=0.0)
        values = tl.load(address + to_values, mask=is_kept, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        is_visible = (seen[None, :] <= position[:, None]) & is_seen[None, :]
        is_visible &= (window == 0) | (seen[None, :] > position[:, None] - window)
        scores = tl.where(is_visible, scores, float("-inf"))
        now = tl.maximum(greatest, tl.max(scores, 1))
        base = tl.where(now == float("-inf"), 0.0, now)  # a window may hide a whole chunk from a row
        correction = tl.exp(greatest - base)
        weights = tl.exp(scores - base[:, None])
        total = total * correction + tl.sum(weights, 1)
        found = found * correction[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        greatest = now
    attended = found / tl.where(position < stop, total, 1.0)[:, None]
    to = found_TX + (query_row * (KV_HEADS * GROUP) + query_head)[:, None] * HEAD_SIZE + column[None, :]
    tl.store(to, attended.to(found_TX.dtype.element_ty), mask=is_there)
