"""The results as a CSV, one row a run, and back; and what the tables and pictures ask of them."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluation.default_policy.cells import Cell, Contender
from evaluation.default_policy.running import NUMBERS, Offered, RunOf

PLACE = ("cell", "load", "seed", "contender")
SET = ("profile", "batch", "chunk", "pool", "rate_per_s", "device_tokens")
HEADER = (*PLACE, *SET, *NUMBERS)


class ResultsError(Exception):
    """The CSV does not hold a run that is asked for."""


def as_csv(runs: Mapping[RunOf, Mapping[str, float]], points: Mapping[tuple[Cell, float, int], Offered]) -> str:
    """Rows in the order of the runs; numbers have six digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    for run, numbers in runs.items():
        cell, point = run.cell, points[run.cell, run.load, run.seed]
        place = (cell.title, f"{run.load:g}", run.seed, run.contender.label)
        setting = (
            cell.profile,
            cell.batch,
            cell.chunk or "",
            cell.pool,
            f"{point.rate_per_s:.6g}",
            point.device_tokens,
        )
        writer.writerow([*place, *setting, *(f"{numbers[name]:.6g}" for name in NUMBERS)])
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class Results:
    """Numbers by cell, load, seed and contender."""

    rows: Mapping[tuple[str, str, int, str], Mapping[str, float]]

    def numbers(self, cell: Cell, load: float, contender: Contender, number: str) -> list[float]:
        """A number under every seed. Raises ResultsError."""
        keys = [(cell.title, f"{load:g}", seed, contender.label) for seed in cell.seeds]
        try:
            return [self.rows[key][number] for key in keys]
        except KeyError as error:
            raise ResultsError(f"the results have no run {error}") from None

    def mean(self, cell: Cell, load: float, contender: Contender, number: str) -> float:
        """The mean over the seeds."""
        return fmean(self.numbers(cell, load, contender, number))

    def best(self, cell: Cell, load: float, contenders: Sequence[Contender]) -> Contender:
        """The one with the least mean completion time, over all seeds."""
        return min(contenders, key=lambda one: self.mean(cell, load, one, "mean_s"))


def read_results(lines: Iterable[str]) -> Results:
    """Read what `as_csv` wrote."""
    rows: dict[tuple[str, str, int, str], Mapping[str, float]] = {}
    for row in csv.DictReader(lines):
        key = (row["cell"], row["load"], int(row["seed"]), row["contender"])
        rows[key] = {name: float(row[name]) for name in NUMBERS}
    return Results(rows)
