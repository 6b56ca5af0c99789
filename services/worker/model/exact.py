"""Float32 on a CPU: the same bits for a row, whatever else is in its batch.

Theory of operation
-------------------
A preempted job may meet other jobs in every iteration, and tokens computed one by one may be recomputed as one prefill.
In float32 neither changes a bit of its logits here, so that its output can be compared token for token. Sums of
floating point numbers depend on their order, so each number's order of additions must not depend on the batch:

- The BLAS has special kernels for one to three rows. Rows are padded until every thread has a share that takes the
  usual kernel. oneDNN, on repacked weights, has one for a single row only.
- An elementwise function computes whole vectors one way and the rest of a thread's share another way. Up to
  SERIAL_ELEMENTS torch does not share work out, and a rest is then always the end of the same row. Additions, products
  and square roots are exact either way.
- Attention: see attention_cpu.py.

This was measured (tests check it), not promised by the BLAS: on another processor equality may only hold up to
rounding. bfloat16 and GPUs take the faster ways, and differ from batch to batch by their rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SERIAL_ELEMENTS = 32768
"""Elementwise work of at most this many numbers is done by one thread (torch's grain size)."""


def is_exact(x: Tensor) -> bool:
    """Whether results with this tensor must have the same bits in every batch."""
    return x.dtype == torch.float32 and x.is_cpu


def row_padding(row_count: int) -> int:
    """Rows to add before a product of the BLAS, for each thread to have a multiple of 4."""
    return -row_count % (4 * max(2, torch.get_num_threads()))


def packed_row_padding(row_count: int) -> int:
    """Rows to add before a product of oneDNN with repacked weights."""
    return 1 if row_count == 1 else 0


def elementwise(function: Callable[[Tensor], Tensor], x_TD: Tensor) -> Tensor:
    """A function of each number. Rows of x must not touch each other in memory, or they would count as one long row."""
    rows = max(1, SERIAL_ELEMENTS // x_TD.shape[1])
    if not is_exact(x_TD) or x_TD.shape[0] <= rows:
        return function(x_TD)
    return torch.cat([function(block) for block in torch.split(x_TD, rows)])
