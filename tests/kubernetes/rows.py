"""What the test cluster has shown: a row for each thing that must be true."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.kubernetes.live import LiveCluster


@dataclass(frozen=True, slots=True)
class Row:
    """`what` must be true; `told` is what was seen."""

    what: str
    holds: bool
    told: str


Scenario = Callable[[LiveCluster], Iterator[Row]]
