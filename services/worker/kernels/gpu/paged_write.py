"""Writing of K and V into the pool on a GPU, by Triton: one launch a layer.

Shape legend: T rows, K kv heads, E head size; the pool is [N, L, 2, O, K, E] (model/batch.py).
"""

import triton
import triton.language as tl
from torch import Tensor

FLOAT16_MOST = tl.constexpr(65504.0)
"""The greatest number that float16 holds."""


def paged_write(pool: Tensor, layer: int, slots_T: Tensor, key_value_T2KE: Tensor) -> None:
    """Stores every row's K and V in its slot (block * block_size + offset, int64); a row whose slot is negative is
    nobody's. What float16 can't hold becomes the nearest number that it can (model/attention.py). K and V of a row are
    contiguous.
    """
    _, layer_count, _, block_size, kv_heads, head_size = pool.shape
    width = kv_heads * head_size
    _write_row[(slots_T.shape[0],)](
        key_value_T2KE,
        pool,
        slots_T,
        layer,
        key_value_T2KE.stride(0),
        layer_count,
        block_size,
        width,
        triton.next_power_of_2(2 * width),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["layer"])  # type: ignore[untyped-decorator]
def _write_row(  # type: ignore[no-untyped-def]
    key_value_T2KE,
    pool,
    slots_T,
    layer,
    row_step,
    LAYERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(slots_T + row)
    if slot < 0:
        return
    column = tl.arange(0, COLUMNS)
    is_there, of_values = column < 2 * WIDTH, column // WIDTH
    number = tl.load(key_value_T2KE + row.to(tl.int64) * row_step + column, mask=is_there)
    if pool.dtype.element_ty == tl.float16:
        is_nan = number != number
        number = tl.minimum(tl.maximum(number.to(tl.float32), -FLOAT16_MOST), FLOAT16_MOST)
        number = tl.where(is_nan, 0.0, number).to(tl.float16)
    page = ((slot // BLOCK_SIZE) * LAYERS + layer) * 2 + of_values
    to = (page * BLOCK_SIZE + slot % BLOCK_SIZE) * WIDTH + column % WIDTH
    tl.store(pool + to, number, mask=is_there)
