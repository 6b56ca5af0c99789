"""Copies of KV between device and host memory: their two directions, and how fast the link between them is."""

from dataclasses import dataclass
from enum import IntEnum
from math import inf

from services.domain.errors import InvalidFieldError


class CopyDirection(IntEnum):
    """Which way blocks go. The numbers index pairs of counters."""

    OFFLOAD = 0
    UPLOAD = 1


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The link between device and host memory, in each direction: all GPUs of one pipeline stage together.

    A direction moves one copy after another. `duplex`: both directions at once, as PCI Express does and a CPU's memory
    does not. Raises InvalidFieldError unless both figures are finite, bytes_per_s above 0 and latency_s 0 or more.
    """

    bytes_per_s: float
    latency_s: float
    duplex: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < inf or not 0 <= self.latency_s < inf:
            raise InvalidFieldError("link", "bytes_per_s must be above 0 and latency_s 0 or more, both finite")

    def copy_s(self, size_bytes: float) -> float:
        """Seconds of one copy."""
        return self.latency_s + size_bytes / self.bytes_per_s
