"""Linear layers: where their weights come from, and how they are kept.

A checkpoint holds q, k and v, and gate and up, as separate tensors; here each such family is one weight, computed
in one product. `Linear.parts` says which rows of it each checkpoint tensor fills.

On a CPU the weight is repacked once into the blocked layout that oneDNN's product wants, and the plain one is dropped:
small batches are bound by reading weights, and packed ones are read 1.3 to 2 times as fast. In float32 it also replaces
a BLAS that has no good kernels for some processors.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.worker.model import exact

PACKED_FOR_ROWS = 16
"""Batch size that the packed layout is chosen for: a usual decode batch. The layout hardly depends on it."""


class Linear(nn.Module):
    """y = x W^T + b.

    `parts` maps the names of checkpoint tensors (without `.weight`) to their numbers of rows, in order.
    """

    def __init__(self, input_size: int, parts: dict[str, int], bias: bool) -> None:
        super().__init__()
        self.parts = parts
        output_size = sum(parts.values())
        self.weight = nn.Parameter(torch.empty(output_size, input_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(output_size), requires_grad=False) if bias else None
        self._packed: Tensor | None = None

    def destinations(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Checkpoint tensor names and the memory that each fills."""
        row = 0
        for name, rows in self.parts.items():
            yield f"{prefix}{name}.weight", self.weight[row : row + rows]
            if self.bias is not None:
                yield f"{prefix}{name}.bias", self.bias[row : row + rows]
            row += rows

    def pack(self) -> None:
        """Repacks the weight for the CPU's matrix product. The plain weight is gone afterwards."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.data, PACKED_FOR_ROWS)
        self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        row_count, padding = x_TD.shape[0], 0
        if exact.is_exact(x_TD):
            padding = (exact.row_padding if self._packed is None else exact.packed_row_padding)(row_count)
        if padding:
            x_TD = F.pad(x_TD, (0, 0, 0, padding))
        if self._packed is None:
            y_TD = F.linear(x_TD, self.weight, self.bias)
        else:
            y_TD = torch.ops.mkldnn._linear_pointwise(x_TD, self._packed, self.bias, "none", [], "")
        return y_TD[:row_count] if padding else y_TD


def packing_helps(weight: Tensor) -> bool:
    """Whether `pack` is possible and worth it: on a CPU, in float32, or in bfloat16 if the CPU can multiply it."""
    if not weight.is_cpu or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
