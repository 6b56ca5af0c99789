"""What docs/observability.md says of every metric."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.builders.repository_paths import ROOT

PAGE = ROOT / "docs" / "observability.md"
_CELL = re.compile(r"`([^`]+)`")


class DescribedMetric(NamedTuple):
    """A row. `series` is the most of one process with `groups` worker groups. `switch` is empty without one."""

    switch: str
    service: str
    name: str
    type: str
    labels: frozenset[str]
    series_of_process: int
    series_of_group: int

    def series(self, groups: int) -> int:
        return self.series_of_process + groups * self.series_of_group

    @property
    def family(self) -> str:
        """The name of its family in the text format, which has no suffix _total."""
        name = self.name if ":" in self.name else f"fastserve:{self.name}"
        return name.removesuffix("_total")


def described_metrics() -> Iterator[DescribedMetric]:
    """All rows of both tables."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 6 or cells[0] in ("service", "switch") or ":---" in line:
            continue
        switch = _CELL.findall(cells[0])
        service, name, kind, labels, series = cells[1:] if switch else cells[:5]
        count, _, each = series.partition(" ")
        yield DescribedMetric(
            switch[0] if switch else "",
            service,
            _CELL.findall(name)[0],
            kind,
            frozenset(_CELL.findall(labels)),
            0 if each else int(count),
            int(count) if each else 0,
        )
