"""The CSV of a figure: a row a run, then for every point the mean, the least and the greatest over its seeds; and the
way back, from the files of an evaluation to its results.

A sweep that several panels draw stands in the file once, under the title of the first of them. Numbers have six
digits, so what is read back differs from what was run in the seventh.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import fsum
from pathlib import Path

from evaluation.measures import NUMBERS
from evaluation.results import Evaluation
from evaluation.values import Figure, Measured, Panel, Run, Scale, System

_PLACE = ("panel", "axis", "x", "system", "policy", "kv_policy", "seed")
_OFFERED = ("rate_per_s", "fcfs_capacity_per_s", "load")
HEADER = (*_PLACE, *_OFFERED, *NUMBERS)


class TableError(Exception):
    """A CSV does not hold the runs that its figure declares."""


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


def _swept(figure: Figure) -> list[Panel]:
    """The first panel of each sweep."""
    return list({panel.sweep: panel for panel in reversed(figure.panels)}.values())[::-1]


def table_owner(figure: Figure, figures: Sequence[Figure]) -> Figure:
    """Whose CSV, and whose picture of gaps, holds this figure's runs: the first that draws the same sweeps."""
    return next(each for each in figures if figure.sweeps <= each.sweeps)


def _point_rows(evaluation: Evaluation, panel: Panel, system: System, x: float) -> Iterator[list[str]]:
    place = [panel.title, panel.axis.value, _written(x), system.label, system.policy.value]
    runs = evaluation.at(panel, system, x)
    columns = [_cells(measured) for measured in runs]
    for seed, measured, cells in zip(evaluation.scale.seeds, runs, columns, strict=True):
        yield [*place, measured.kv_policy, str(seed), *map(_written, cells)]
    for name, summary in _SUMMARIES.items():
        cells = [summary(values) for values in zip(*columns, strict=True)]
        yield [*place, system.kv_policy, name, *map(_written, cells)]


def table(evaluation: Evaluation, figure: Figure) -> str:
    """The whole file."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(HEADER)
    for panel in _swept(figure):
        for system in panel.systems:
            for x in evaluation.scale.of(panel.points):
                rows.writerows(_point_rows(evaluation, panel, system, x))
    return written.getvalue()


def _measured(row: Mapping[str, str]) -> Measured:
    numbers = {name: float(row[name]) for name in NUMBERS}
    return Measured(float(row["fcfs_capacity_per_s"]), float(row["rate_per_s"]), numbers, row["kv_policy"])


def _runs_of(figure: Figure, scale: Scale, rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[Run, Measured]]:
    by_place = {(row["panel"], row["x"], row["system"], row["seed"]): row for row in rows}
    for panel in _swept(figure):
        for system, x, seed in product(panel.systems, scale.of(panel.points), scale.seeds):
            run = panel.run(scale, system, x, seed)
            place = f"{system.label} at {panel.axis} {x:g}, seed {seed}, of '{panel.title}'"
            row = by_place.get((panel.title, _written(x), system.label, str(seed)))
            if row is None:
                raise TableError(f"{figure.name}.csv has no row of {place}")
            try:
                measured = _measured(row)
            except (TypeError, ValueError) as error:
                raise TableError(f"{figure.name}.csv has something else than numbers in the row of {place}") from error
            if measured.numbers["jobs"] != run.traffic.jobs:
                raise TableError(f"{figure.name}.csv has runs of {row['jobs']} jobs, not {run.traffic.jobs}")
            yield run, measured


def read_evaluation(folder: Path, figures: Sequence[Figure], scale: Scale) -> Evaluation:
    """What the files of a folder say. Raises OSError for a file that is not there, TableError for one that lacks a run,
    has other columns or something else than numbers, or was run at another scale.
    """
    measured: dict[Run, Measured] = {}
    for figure in figures:
        if table_owner(figure, figures) is not figure:
            continue
        with (folder / f"{figure.name}.csv").open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != HEADER:
                raise TableError(f"{figure.name}.csv has other columns than those of this code")
            measured.update(_runs_of(figure, scale, list(rows)))
    return Evaluation(scale, tuple(figures), measured)
