"""What bounds an engine on a CPU: the speed at which memory is read, and that of products. By torch's own operators, so
that neither kernel is measured by itself.

Products of bfloat16 numbers are those of bfloat16, or of float32 where these are faster: a processor without the former
multiplies numbers of bfloat16 as float32.
"""

import json
import time
from collections.abc import Callable

import torch

READ_BYTES = 1 << 30
PRODUCT_ROWS, TRIAL_ROWS = 2048, 256
RUNS = 5


def measured_rates() -> dict[str, float]:
    """The best of a few runs each: bytes read per second, and operations (2 a product) per second."""
    numbers = torch.ones(READ_BYTES // 4, dtype=torch.int32)
    fastest = min((torch.bfloat16, torch.float32), key=lambda dtype: _product_s(TRIAL_ROWS, dtype))
    return {
        "read_bytes_per_s": READ_BYTES / _best_s(lambda: numbers.max()),
        "product_flop_per_s": 2 * PRODUCT_ROWS**3 / _product_s(PRODUCT_ROWS, fastest),
    }


def _product_s(rows: int, dtype: torch.dtype) -> float:
    a, b = (torch.randn(rows, rows).to(dtype) for _ in range(2))
    return _best_s(lambda: torch.mm(a, b))


def _best_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)


if __name__ == "__main__":
    print(json.dumps(measured_rates()))
