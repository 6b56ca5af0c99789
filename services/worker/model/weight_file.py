"""Reads tensors, and parts of them, from one safetensors file, within a bound of memory.

What is read is a view of the mapped file: its pages count as memory of this process until the file is closed. So the
file is closed and opened again whenever more than one large tensor has been read; opening takes a tenth of a
millisecond.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from safetensors import safe_open
from torch import Tensor


class Cut(NamedTuple):
    """A part of a tensor: the indices `kept` of dimension `dim`, 0 or 1."""

    dim: int
    kept: range


class WeightFile:
    """A safetensors file. `most_elements`: how many numbers may be mapped at a time, unless a single tensor has more.

    Its methods raise SafetensorError or OSError for a broken file.
    """

    def __init__(self, path: Path, most_elements: int) -> None:
        self._path = path
        self._most_elements = most_elements
        self._mapped_elements = 0
        self._file = self._opened()

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def names(self) -> Sequence[str]:
        return tuple(self._file.keys())

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor, without reading it."""
        return list(self._file.get_slice(name).get_shape())

    def read(self, name: str, cut: Cut | None = None) -> Tensor:
        """A tensor or a part of it. It is valid until the next call."""
        shape = self.shape(name)
        elements = 1
        for size in shape:
            elements *= size
        if cut is not None and cut.dim == 0:
            elements = elements // max(shape[0], 1) * len(cut.kept)  # of columns, all pages are touched
        if self._mapped_elements and self._mapped_elements + elements > self._most_elements:
            self._file.__exit__(None, None, None)
            self._file, self._mapped_elements = self._opened(), 0
        self._mapped_elements += elements
        if cut is None:
            whole: Tensor = self._file.get_tensor(name)
            return whole
        kept = slice(cut.kept.start, cut.kept.stop)
        part: Tensor = self._file.get_slice(name)[kept if cut.dim == 0 else (slice(None), kept)]
        return part

    def _opened(self) -> Any:
        file: Any = safe_open(self._path, framework="pt")
        return file.__enter__()
