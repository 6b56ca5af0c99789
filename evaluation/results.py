"""The results of an evaluation, as figures, tables and the report ask for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from evaluation.interpolation import Known, sustained_rate
from evaluation.values import Figure, Measured, Panel, Run, Scale, System


@dataclass(frozen=True, slots=True)
class Point:
    """A system at one point of a panel's axis: mean, least and greatest over the seeds."""

    x: float
    rate_per_s: float
    load: float
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times smaller a number is under the better system at a point."""

    x: float
    load: float
    times: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was run at a scale, and what came of it; `figures` are those whose runs are all there."""

    scale: Scale
    figures: tuple[Figure, ...]
    measured: Mapping[Run, Measured]

    def has(self, figure: str) -> bool:
        """Whether the figure was run."""
        return any(each.name == figure for each in self.figures)

    def figure(self, name: str) -> Figure:
        """The figure of this name."""
        return next(figure for figure in self.figures if figure.name == name)

    def at(self, panel: Panel, system: System, x: float) -> tuple[Measured, ...]:
        """The runs of a point, one a seed."""
        return tuple(self.measured[panel.run(self.scale, system, x, seed)] for seed in self.scale.seeds)

    def points(self, panel: Panel, system: System, number: str | None = None) -> tuple[Point, ...]:
        """A system's line in a panel; `number` None: the panel's own metric."""
        return tuple(self.point(panel, system, x, number or panel.metric.name) for x in self.scale.of(panel.points))

    def point(self, panel: Panel, system: System, x: float, number: str) -> Point:
        """One point of a line."""
        runs = self.at(panel, system, x)
        values = [run.numbers[number] for run in runs]
        return Point(
            x,
            fsum(run.rate_per_s for run in runs) / len(runs),
            fsum(run.load for run in runs) / len(runs),
            fsum(values) / len(values),
            min(values),
            max(values),
        )

    def gains(self, panel: Panel, worse: System, better: System, number: str | None = None) -> tuple[Gain, ...]:
        """How many times smaller `number` is under `better`, point by point."""
        pairs = zip(self.points(panel, worse, number), self.points(panel, better, number), strict=True)
        return tuple(Gain(one.x, one.load, one.mean / other.mean) for one, other in pairs if other.mean > 0)

    def sustained(self, panel: Panel, system: System, limit: float, number: str | None = None) -> Known:
        """The rate that keeps `number` within `limit`, from a panel that sweeps loads or rates."""
        line = self.points(panel, system, number)
        return sustained_rate([(point.rate_per_s, point.mean) for point in line], limit)
