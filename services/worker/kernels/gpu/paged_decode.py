"""Attention of decodes on a GPU, by Triton: keys and values are read where they lie in the pool.

Theory of operation
-------------------
A program has one sequence, one kv head and a part of its positions, and the query heads that share the kv head as the
rows of its products. It walks its positions in chunks, with the softmax taken chunk by chunk: the greatest score so
far, the sum of exponentials and the weighted values are corrected whenever a greater one comes. So few jobs use a whole
GPU, too: their positions are cut into as many parts as there are processors, and what the parts found is put together
by a second kernel, in the order of the parts.

How a sequence is cut depends on its length and on the number of sequences, never on the other lengths: lengths are read
on the device, and a launch is the same whatever they are, as recorded passes need it (recorded_decoder.py).

Shape legend: B decode sequences, P pages of a table, H query heads, K kv heads, G = H / K, E head size, R parts; the
pool is [N, L, 2, O, K, E] (model/batch.py).
"""

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 128
"""Positions that a program looks at together. This, the parts and the warps are the best of some, for 1 to 256 jobs of
256 to 1,024 tokens of Llama-3-8B's shape on an H200."""
LEAST_ROWS = 16
"""Rows of a product at least, which is what tensor cores multiply."""
MOST_PARTS = 16
PROGRAMS_OF_PROCESSOR = 16
"""So many programs for each processor of the GPU, unless that cuts a sequence into more than MOST_PARTS."""


def paged_decode(
    query_BHE: Tensor, pool: Tensor, layer: int, block_table_BP: Tensor, lengths_B: Tensor, window: int | None
) -> Tensor:
    """Attention of one row of each sequence, whose position is the last one of its length, [B, H * E]. The row's own K
    and V are in the pool already. `block_table_BP` and `lengths_B` are int64; a row of the table may be wider than
    its sequence needs.
    """
    batch, heads, head_size = query_BHE.shape
    _, layer_count, _, block_size, kv_heads, _ = pool.shape
    parts = parts_of(batch * kv_heads, pool.device)
    query_BHE = query_BHE.contiguous()
    found = torch.empty(batch, heads, head_size, dtype=query_BHE.dtype, device=pool.device)
    part_found = found if parts == 1 else torch.empty(parts, batch, heads, head_size, device=pool.device)
    part_weights = torch.empty(2, parts, batch, heads, device=pool.device)
    group = heads // kv_heads
    _attend_part[(batch, kv_heads, parts)](
        query_BHE,
        pool,
        block_table_BP,
        lengths_B,
        part_found,
        part_weights,
        1 / math.sqrt(head_size),
        layer,
        0 if window is None else window,
        block_table_BP.stride(0),
        layer_count,
        block_size,
        kv_heads,
        group,
        head_size,
        parts,
        max(LEAST_ROWS, triton.next_power_of_2(group)),
        triton.next_power_of_2(head_size),
        CHUNK,
        num_warps=4,
        num_stages=2,
    )
    if parts > 1:
        _join_parts[(batch, heads)](
            part_found, part_weights, found, heads, head_size, parts, triton.next_power_of_2(head_size)
        )
    return found.view(batch, heads * head_size)


def try_out(device: torch.device) -> None:
    """Attends to one position. Raises whatever Triton raises where it can't compile or launch."""
    query_BHE, pool = torch.zeros(1, 1, 16, device=device), torch.zeros(1, 1, 2, 16, 1, 16, device=device)
    place = torch.zeros(1, 1, dtype=torch.int64, device=device)
    paged_decode(query_BHE, pool, 0, place, place[0] + 1, None)
    torch.cuda.synchronize(device)


def parts_of(programs: int, device: torch.device) -> int:
    """How many parts each sequence is cut into, a power of two: enough that the longest ones do not end alone."""
    wanted = PROGRAMS_OF_PROCESSOR * _processor_count(device) // programs
    return min(MOST_PARTS, 1 << max(wanted, 1).bit_length() - 1)


@cache
def _processor_count(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(  # type: ignore[no-untyped-def]
    query_BHE,
    pool,
    block_table_BP,
    lengths_B,
    part_found,
    part_weights,
    scale,
    layer,
    window,
    table_step,
    LAYERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Of one part: what it found, the greatest score and the sum of weights; of the only one the attention itself."""
    sequence, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch = tl.num_programs(0)
    length = tl.load(lengths_B + sequence).to(tl.int32)
    first_seen = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    chunks_of_part = tl.cdiv(tl.cdiv(length - first_seen, CHUNK), PARTS)
    begin = first_seen + part * chunks_of_part * CHUNK
    stop = tl.minimum(begin + chunks_of_part * CHUNK, length)

    row, column, place = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    of_head = (sequence * KV_HEADS + head) * GROUP
    is_there = (row[:, None] < GROUP) & (column[None, :] < HEAD_SIZE)
    query = tl.load(query_BHE + (of_head + row[:, None]) * HEAD_SIZE + column[None, :], mask=is_there, other=0.0)
    greatest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_values = BLOCK_SIZE * KV_HEADS * HEAD_SIZE
    for start in range(begin, stop, CHUNK):
        position = start + place
        is_seen = position < stop
        block = tl.load(block_table_BP + sequence * table_step + position // BLOCK_SIZE, mask=is_seen, other=0)
        at = (block.to(tl.int64) * LAYERS + layer) * 2 * to_values
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
    if PARTS == 1:
        attended = found / total[:, None]
        to = part_found + (of_head + row[:, None]) * HEAD_SIZE + column[None, :]
        tl.store(to, attended.to(part_found.dtype.element_ty), mask=is_there)
    else:
        heads = KV_HEADS * GROUP
        first = part * batch * heads + of_head
        tl.store(part_found + (first + row[:, None]) * HEAD_SIZE + column[None, :], found, mask=is_there)
        tl.store(part_weights + first + row, greatest, mask=row < GROUP)
        tl.store(part_weights + PARTS * batch * heads + first + row, total, mask=row < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _join_parts(  # type: ignore[no-untyped-def]
    part_found,
    part_weights,
    found_BHE,
    heads,
    HEAD_SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The attention of one query head. A part without positions has the weight 0: its greatest score is -inf."""
    batch = tl.num_programs(0)
    number, count = tl.program_id(0) * heads + tl.program_id(1), batch * heads
    part, column = tl.arange(0, PARTS), tl.arange(0, COLUMNS)
    greatest = tl.load(part_weights + part * count + number)
    total = tl.load(part_weights + (PARTS + part) * count + number)
    factor = tl.exp(greatest - tl.max(greatest, 0))
    is_there = (part[:, None] >= 0) & (column[None, :] < HEAD_SIZE)
    address = part_found + (part[:, None] * count + number) * HEAD_SIZE + column[None, :]
    found = tl.load(address, mask=is_there, other=0.0)
    joined = tl.sum(found * factor[:, None], 0) / tl.sum(total * factor, 0)
    tl.store(found_BHE + number * HEAD_SIZE + column, joined.to(found_BHE.dtype.element_ty), mask=column < HEAD_SIZE)
