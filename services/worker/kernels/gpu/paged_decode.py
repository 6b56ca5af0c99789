"""Attention of decodes on a GPU, by Triton: keys and values are read where they lie in the pool.

Theory of operation
-------------------
A program has one kv head and one item: a decode and some of its positions (attention_work.py). The query heads that
share the kv head are the rows of its products. It walks its positions in chunks, with the softmax taken chunk by chunk:
the greatest score so far, the sum of exponentials and the weighted values are corrected whenever a greater one comes.
What the items of a decode found is put together by a second kernel, in their order. Programs of all kv heads of an item
are begun together: what they read lies side by side.

A launch depends on the room for items and decodes alone, as recorded passes need it (recorded_decoder.py). Sequences of
one row come first in a batch, so a decode's row has its number.

Shape legend: T rows, S sequences, B decodes of them, Y items, P pages of a table, H query heads, K kv heads, G = H / K,
E head size; the pool is [N, L, 2, O, K, E] (model/batch.py).
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.kernels.gpu.attention_work import CHUNK, AttentionWork

LEAST_ROWS = 16
"""Rows of a product at least, which is what tensor cores multiply."""
JOINED = 16
"""Slots that are joined together."""


def paged_decode(
    query_THE: Tensor,
    pool: Tensor,
    layer: int,
    work: AttentionWork,
    block_table_SP: Tensor,
    window: int | None,
    found_TX: Tensor,
) -> None:
    """Attention of decodes, each of which is the last position of its length, into their rows of `found_TX`, [T, H *
    E], which is contiguous. The rows' own K and V are in the pool already. `block_table_SP` is int64; it may be wider
    than needed. A row of `query_THE` is contiguous.
    """
    _, heads, head_size = query_THE.shape
    _, layer_count, _, block_size, kv_heads, _ = pool.shape
    group, item_count, columns = heads // kv_heads, work.items_Y5.shape[0], triton.next_power_of_2(head_size)
    slot_found = torch.empty(item_count, heads, head_size, device=pool.device)
    slot_weights = torch.empty(2, item_count, heads, device=pool.device)
    _attend_item[(kv_heads, item_count)](
        query_THE,
        pool,
        work.items_Y5,
        block_table_SP,
        found_TX,
        slot_found,
        slot_weights,
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
        max(LEAST_ROWS, triton.next_power_of_2(group)),
        columns,
        CHUNK,
        num_warps=4,
        num_stages=2 if query_THE.dtype == torch.float32 else 3,  # as shared memory allows
    )
    _join_slots[(work.joins_B2.shape[0], heads)](
        work.joins_B2, slot_found, slot_weights, found_TX, item_count, heads, head_size, JOINED, columns
    )


def try_out(device: torch.device) -> None:
    """Attends to one position. Raises whatever Triton raises where it can't compile or launch."""
    query_THE, pool = torch.zeros(1, 1, 16, device=device), torch.zeros(1, 1, 2, 16, 1, 16, device=device)
    items, joins = torch.tensor([[0, 0, 1, -1, 1]], device=device), torch.zeros(1, 2, dtype=torch.int64, device=device)
    work = AttentionWork(items, joins, joins)
    paged_decode(query_THE, pool, 0, work, joins[:, :1], None, query_THE.view(1, 16))
    torch.cuda.synchronize(device)


@triton.jit(do_not_specialize=["layer", "window", "table_step"])  # type: ignore[untyped-decorator]
def _attend_item(  # type: ignore[no-untyped-def]
    query_THE,
    pool,
    items_Y5,
    block_table_SP,
    found_TX,
    slot_found,
    slot_weights,
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
    """Of one item: what it found, the greatest score and the sum of weights; of a decode's only one the attention."""
    head, item = tl.program_id(0), items_Y5 + tl.program_id(1) * 5
    stop = tl.load(item + 2).to(tl.int32)
    if stop == 0:
        return
    sequence, slot = tl.load(item), tl.load(item + 3)
    begin, length = tl.load(item + 1).to(tl.int32), tl.load(item + 4).to(tl.int32)
    begin = tl.where(window > 0, tl.maximum(begin, length - window), begin)

    row, column, place = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    is_there = (row[:, None] < GROUP) & (column[None, :] < HEAD_SIZE)
    at_query = sequence * query_step + (head * GROUP + row) * HEAD_SIZE
    query = tl.load(query_THE + at_query[:, None] + column[None, :], mask=is_there, other=0.0)
    greatest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_values = BLOCK_SIZE * KV_HEADS * HEAD_SIZE
    for start in range(begin, stop, CHUNK):
        position = start + place
        is_seen = position < stop
        block = tl.load(block_table_SP + sequence * table_step + position // BLOCK_SIZE, mask=is_seen, other=0)
        at = (block * LAYERS + layer) * 2 * to_values
        at += (position % BLOCK_SIZE) * (KV_HEADS * HEAD_SIZE) + head * HEAD_SIZE
        address, is_kept = pool + at[:, None] + column[None, :], is_seen[:, None] & (column[None, :] < HEAD_SIZE)
        keys = tl.load(address, mask=is_kept, other=0.0)
        values = tl.load(address + to_values, mask=is_kept, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        now = tl.maximum(greatest, tl.max(scores, 1))
        correction = tl.exp(greatest - now)
        weights = tl.exp(scores - now[:, None])
        total = total * correction + tl.sum(weights, 1)
        found = found * correction[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        greatest = now
    heads = KV_HEADS * GROUP
    if slot < 0:
        to = found_TX + (sequence * heads + head * GROUP + row)[:, None] * HEAD_SIZE + column[None, :]
        tl.store(to, (found / total[:, None]).to(found_TX.dtype.element_ty), mask=is_there)
    else:
        first = slot * heads + head * GROUP
        tl.store(slot_found + (first + row)[:, None] * HEAD_SIZE + column[None, :], found, mask=is_there)
        tl.store(slot_weights + first + row, greatest, mask=row < GROUP)
        tl.store(slot_weights + tl.num_programs(1) * heads + first + row, total, mask=row < GROUP)


@triton.jit(do_not_specialize=["slot_count"])  # type: ignore[untyped-decorator]
def _join_slots(  # type: ignore[no-untyped-def]
    joins_B2,
    slot_found,
    slot_weights,
    found_TX,
    slot_count,
    heads,
    HEAD_SIZE: tl.constexpr,
    JOINED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The attention of one query head of a decode, if it has several slots. One that a window left without positions
    has the weight 0: its greatest score is -inf.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(joins_B2 + sequence * 2), tl.load(joins_B2 + sequence * 2 + 1).to(tl.int32)
    if count == 0:
        return
    slot, column = tl.arange(0, JOINED), tl.arange(0, COLUMNS)
    is_column = column < HEAD_SIZE
    greatest, total = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    found = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, count, JOINED):
        is_slot = start + slot < count
        at = (first + start + slot) * heads + head
        scores = tl.load(slot_weights + at, mask=is_slot, other=float("-inf"))
        totals = tl.load(slot_weights + slot_count * heads + at, mask=is_slot, other=0.0)
        values = tl.load(
            slot_found + at[:, None] * HEAD_SIZE + column[None, :],
            mask=is_slot[:, None] & is_column[None, :],
            other=0.0,
        )
        now = tl.maximum(greatest, tl.max(scores, 0))
        base = tl.where(now == float("-inf"), 0.0, now)
        correction, factor = tl.exp(greatest - base), tl.exp(scores - base)
        total = total * correction + tl.sum(totals * factor, 0)
        found = found * correction + tl.sum(values * factor[:, None], 0)
        greatest = now
    to = found_TX + (sequence * heads + head) * HEAD_SIZE + column
    tl.store(to, (found / total).to(found_TX.dtype.element_ty), mask=is_column)
