"""Which tokens a job has seen and how often it made them: the input of penalties, kept up to date token by
token.

Only tokens that occur are kept, so that a penalty touches some hundred logits of a row instead of the whole vocabulary.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_FIRST_CAPACITY = 64


class TokenCounts:
    """Distinct tokens of prompt and output, and how often the output contains each."""

    __slots__ = ("_counts", "_ids", "_places")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._counts = np.zeros(_FIRST_CAPACITY, dtype=np.float32)

    def add_prompt(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self._place(token_id)

    def add_output(self, token_id: int) -> None:
        place = self._place(token_id)  # may replace the arrays
        self._counts[place] += 1.0

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """The distinct tokens, in the order in which they came."""
        return self._ids[: len(self._places)]

    @property
    def output_counts(self) -> npt.NDArray[np.float32]:
        """How often the output contains each of `token_ids`; 0 for a token of the prompt alone."""
        return self._counts[: len(self._places)]

    def _place(self, token_id: int) -> int:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        return place
