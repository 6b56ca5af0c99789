"""How the next tokens of rows are chosen, as the compiled decoder reads it (Draw and Adjustment of
kernels/cpu/decoder.h).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.worker.sampling.sampler import SampleRow

DRAW = np.dtype(
    [
        ("temperature", np.float32),
        ("least_nats", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("stream", np.int64),
        ("number", np.int64),
    ]
)
_ADDRESS = np.uintp
ADJUSTMENT = np.dtype(
    [
        ("bias_ids", _ADDRESS),
        ("biases", _ADDRESS),
        ("bias_count", np.int64),
        ("seen_ids", _ADDRESS),
        ("seen_counts", _ADDRESS),
        ("seen_count", np.int64),
        ("repetition_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("unused", np.float32),
    ]
)


class Choices:
    """Of rows whose tokens follow from their logits and from the tokens before. Keeps what the addresses point at.
    Token counts are copies, with room for a token of each of the iterations.
    """

    def __init__(self, rows: Sequence[SampleRow], iterations: int) -> None:
        self.draws = draws_of(rows)
        """Of DRAW [R]."""
        self._rows = rows
        self._seen: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = []
        adjusts = any(row.counts is not None or len(row.sampler.bias_ids) for row in rows)
        made = [self._adjustment(row, iterations) for row in rows] if adjusts else []
        self._adjustments = np.array(made, dtype=ADJUSTMENT)

    @property
    def adjustments_address(self) -> int | None:
        """Of ADJUSTMENT [R]; None if no row's logits are changed."""
        return self._adjustments.ctypes.data if len(self._adjustments) else None

    def _adjustment(self, row: SampleRow, iterations: int) -> tuple[float, ...]:
        sampler, sampling = row.sampler, row.sampler.sampling
        bias = (sampler.bias_ids.ctypes.data, sampler.bias_values.ctypes.data, len(sampler.bias_ids))
        if row.counts is None:
            return (*bias, 0, 0, 0, 1.0, 0.0, 0.0, 0.0)
        seen = len(row.counts.token_ids)
        ids, counts = np.empty(seen + iterations, np.int64), np.empty(seen + iterations, np.float32)
        ids[:seen], counts[:seen] = row.counts.token_ids, row.counts.output_counts
        self._seen.append((ids, counts))
        penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        return (*bias, ids.ctypes.data, counts.ctypes.data, seen, *penalties, 0.0)


def draws_of(rows: Sequence[SampleRow]) -> npt.NDArray[np.void]:
    """The rows' draws alone, of DRAW [R]."""
    return np.array([(*row.sampler.draw, row.number) for row in rows], dtype=DRAW)
