"""The CSV of a figure: a row a run, then for every point the mean, the least and the greatest over its seeds."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import fsum

from evaluation.evaluation import Evaluation
from evaluation.measures import NUMBERS
from evaluation.values import Figure, Measured, Panel, System

_PLACE = ("panel", "axis", "x", "system", "policy", "kv_policy", "seed")
_OFFERED = ("rate_per_s", "fcfs_capacity_per_s", "load")
HEADER = (*_PLACE, *_OFFERED, *NUMBERS)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


_SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": _mean, "least": min, "greatest": max}


def _cells(measured: Measured) -> list[float]:
    return [
        measured.rate_per_s,
        measured.capacity_per_s,
        measured.load,
        *(measured.numbers[name] for name in NUMBERS),
    ]


def _written(value: float) -> str:
    return f"{value:.6g}"


def _point_rows(evaluation: Evaluation, panel: Panel, system: System, x: float) -> Iterator[list[str]]:
    place = [panel.title, panel.axis.value, _written(x), system.label, system.policy.value, system.kv_policy]
    columns = [_cells(measured) for measured in evaluation.at(panel, system, x)]
    for seed, cells in zip(evaluation.scale.seeds, columns, strict=True):
        yield [*place, str(seed), *map(_written, cells)]
    for name, summary in _SUMMARIES.items():
        yield [*place, name, *(_written(summary(values)) for values in zip(*columns, strict=True))]


def table(evaluation: Evaluation, figure: Figure) -> str:
    """The whole file. Panels that draw the same runs in two ways stand in it once each."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(HEADER)
    for panel in figure.panels:
        for system in panel.systems:
            for x in evaluation.scale.of(panel.points):
                rows.writerows(_point_rows(evaluation, panel, system, x))
    return written.getvalue()
