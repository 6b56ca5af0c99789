"""Work on single numbers on a GPU, by Triton: several of torch's steps in one launch, which reads and writes memory
once. Each is rounded once, where torch rounds every step.

Shape legend: T rows, N heads, E head size, I width of the feed-forward part.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.model.decoder import DecoderModel
from services.worker.model.llama import FeedForward, Norm, SelfAttention

HEADS = 8
"""Heads of a row that a program turns."""
COLUMNS = 1024
"""Numbers of a row that a program multiplies by their gates."""


def fuse(model: DecoderModel) -> None:
    """Replaces what a model's parts are given for this by what is here."""
    for part in model.modules():
        match part:
            case Norm():
                part.normed = normed
            case SelfAttention():
                part.rotate = rotate
            case FeedForward() if part.activation is torch.nn.functional.silu:
                part.gated = gated_silu


def rotate(x_TNE: Tensor, cosines_T1E: Tensor, sines_T1E: Tensor, out_TNE: Tensor) -> None:
    """See model/rope.py. Heads of a row lie side by side, in `out_TNE` too, which may be `x_TNE`."""
    rows, heads, head_size = x_TNE.shape
    _rotate_heads[(rows, triton.cdiv(heads, HEADS))](
        x_TNE,
        cosines_T1E,
        sines_T1E,
        out_TNE,
        x_TNE.stride(0),
        out_TNE.stride(0),
        heads,
        head_size // 2,
        triton.next_power_of_2(head_size // 2),
        HEADS,
        num_warps=2,
    )


def gated_silu(gate_up_TI: Tensor) -> Tensor:
    """SiLU of the first half of every row times its second half, [T, I]."""
    rows, width = gate_up_TI.shape[0], gate_up_TI.shape[1] // 2
    out_TI = torch.empty(rows, width, dtype=gate_up_TI.dtype, device=gate_up_TI.device)
    _gate_row[(rows, triton.cdiv(width, COLUMNS))](gate_up_TI, out_TI, width, COLUMNS, num_warps=4)
    return out_TI


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See model/llama.py."""
    width = weight.shape[0]
    rows = x.reshape(-1, width)
    out = torch.empty_like(rows)
    columns = triton.next_power_of_2(width)
    _norm_row[(rows.shape[0],)](rows, weight, out, epsilon, rows.stride(0), width, columns, num_warps=warps_of(columns))
    return out.view(x.shape)


def warps_of(columns: int) -> int:
    """So many that each thread has eight numbers, where there are enough."""
    return min(max(columns // (8 * 32), 1), 16)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_row(x, weight, out, epsilon, step, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    is_there = column < WIDTH
    number = tl.load(x + row * step + column, mask=is_there, other=0.0).to(tl.float32)
    factor = 1 / tl.sqrt(tl.sum(number * number, 0) / WIDTH + epsilon)
    normed = number * factor * tl.load(weight + column, mask=is_there, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, normed.to(out.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_heads(  # type: ignore[no-untyped-def]
    x_TNE,
    cosines_T1E,
    sines_T1E,
    out_TNE,
    x_step,
    out_step,
    COUNT: tl.constexpr,
    HALF: tl.constexpr,
    PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head, pair = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, PAIRS)
    is_pair = pair < HALF
    is_there = (head < COUNT)[:, None] & is_pair[None, :]
    at = head[:, None] * (2 * HALF) + pair[None, :]
    first = tl.load(x_TNE + row * x_step + at, mask=is_there).to(tl.float32)
    second = tl.load(x_TNE + row * x_step + at + HALF, mask=is_there).to(tl.float32)
    of_row = row * (2 * HALF) + pair
    first_cosine = tl.load(cosines_T1E + of_row, mask=is_pair)[None, :].to(tl.float32)
    second_cosine = tl.load(cosines_T1E + of_row + HALF, mask=is_pair)[None, :].to(tl.float32)
    first_sine = tl.load(sines_T1E + of_row, mask=is_pair)[None, :].to(tl.float32)
    second_sine = tl.load(sines_T1E + of_row + HALF, mask=is_pair)[None, :].to(tl.float32)
    to = out_TNE + row * out_step + at
    turned_first, turned_second = (
        first * first_cosine + second * first_sine,
        second * second_cosine + first * second_sine,
    )
    tl.store(to, turned_first.to(out_TNE.dtype.element_ty), mask=is_there)
    tl.store(to + HALF, turned_second.to(out_TNE.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def _gate_row(gate_up_TI, out_TI, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_there = column < WIDTH
    gate = tl.load(gate_up_TI + row * (2 * WIDTH) + column, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(gate_up_TI + row * (2 * WIDTH) + WIDTH + column, mask=is_there, other=0.0).to(tl.float32)
    gated = gate / (1 + tl.exp(-gate)) * up
    tl.store(out_TI + row * WIDTH + column, gated.to(out_TI.dtype.element_ty), mask=is_there)
