"""Contenders over the best form of FCFS, and where the default policy misses what is asked of it. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evaluation.default_policy.cells import FCFS_FORMS, FCFS_RESERVES, GITTINS, SKIP_JOIN, SRPT, Cell, Contender
from evaluation.default_policy.results import Results

MOST_MEAN, MOST_P99, LEAST_THROUGHPUT = 1.05, 1.2, 0.99
MOST_SILENCE_S = {"ample": 2.0, "quarter": 5.0}
MOST_JOBS = 0.95
"""The share of jobs within the limits at which a rate counts as sustained."""
LEAST_WITHIN = -0.001
"""Differences of the share of jobs within the limits that are called none: one job in a thousand."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A contender at a load of a cell, over the best form of FCFS there; `within` is a share, `silence_s` seconds."""

    contender: Contender
    mean: float
    p95: float
    p99: float
    throughput: float
    within: float
    silence_s: float
    moved_gb: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One load of a cell: the best form of FCFS, and all contenders beside it."""

    cell: Cell
    load: float
    best: Contender
    mean_s: float
    p99_s: float
    within: float
    standings: tuple[Standing, ...]

    def of(self, contender: Contender) -> Standing:
        """The standing of a contender."""
        return next(one for one in self.standings if one.contender == contender)

    @property
    def misses(self) -> tuple[str, ...]:
        """What is asked of the default policy and does not hold here, with the oracle's figure."""
        ours, oracle = self.of(GITTINS), self.of(SRPT)
        limit_s = MOST_SILENCE_S[self.cell.pool]
        checks = (
            (ours.mean <= MOST_MEAN, f"mean {ours.mean:.2f}x (oracle {oracle.mean:.2f}x)"),
            (ours.p99 <= MOST_P99, f"P99 {ours.p99:.2f}x (oracle {oracle.p99:.2f}x)"),
            (
                ours.throughput >= LEAST_THROUGHPUT,
                f"throughput {ours.throughput:.3f}x (oracle {oracle.throughput:.3f}x)",
            ),
            (
                ours.within - self.within >= LEAST_WITHIN,
                f"within limits {ours.within:.1%} against {self.within:.1%} (oracle {oracle.within:.1%})",
            ),
            (ours.silence_s <= limit_s, f"silence {ours.silence_s:.1f} s (oracle {oracle.silence_s:.1f} s)"),
        )
        return tuple(text for holds, text in checks if not holds)


def verdicts(results: Results, cells: tuple[Cell, ...]) -> Iterator[Verdict]:
    """Every load of every cell."""
    for cell in cells:
        forms = tuple(one for one in cell.contenders if one in FCFS_FORMS)
        for load in cell.loads:
            best = results.best(cell, load, forms)
            base = {name: results.mean(cell, load, best, name) for name in ("mean_s", "p95_s", "p99_s", "tokens_per_s")}
            standings = tuple(
                Standing(
                    contender,
                    results.mean(cell, load, contender, "mean_s") / base["mean_s"],
                    results.mean(cell, load, contender, "p95_s") / base["p95_s"],
                    results.mean(cell, load, contender, "p99_s") / base["p99_s"],
                    results.mean(cell, load, contender, "tokens_per_s") / base["tokens_per_s"],
                    results.mean(cell, load, contender, "within"),
                    results.mean(cell, load, contender, "silence_p99_s"),
                    results.mean(cell, load, contender, "moved_gb"),
                )
                for contender in cell.contenders
            )
            within = results.mean(cell, load, best, "within")
            yield Verdict(cell, load, best, base["mean_s"], base["p99_s"], within, standings)


def most_load(verdicts: Sequence[Verdict], contender: Contender) -> float | None:
    """The load up to which MOST_JOBS are within the limits, between the last that holds and the first that does not by
    a straight line. `verdicts` are those of one cell by load; None: the loads do not tell.
    """
    points = [(verdict.load, verdict.of(contender).within) for verdict in verdicts]
    for (low, before), (high, after) in pairwise(points):
        if before >= MOST_JOBS > after:
            return low + (high - low) * (before - MOST_JOBS) / (before - after)
    return None


SHOWN = (FCFS_RESERVES, SKIP_JOIN, GITTINS, SRPT)
"""In the table, beside the best form of FCFS; reservation differs only where the pool fills up."""
