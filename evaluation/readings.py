"""Ways to read one number off an evaluation: what a claim of the papers is compared with."""

from collections.abc import Callable
from dataclasses import dataclass

from evaluation.interpolation import Bound, Known
from evaluation.results import Evaluation
from evaluation.systems import FCFS
from evaluation.values import Axis, Figure, Panel, System

AXIS_WORDS = {
    Axis.LOAD: "load",
    Axis.RATE: "rate",
    Axis.CV: "CV",
    Axis.THETA: "theta",
    Axis.RATIO: "ratio",
    Axis.IDLE_SLOTS: "K",
    Axis.QUANTUM_RATIO: "quantum ratio",
    Axis.STAGES: "stages",
    Axis.BATCH: "batch",
}
KEEPS_UP = 1.01
"""Who works the same jobs off in at most so many times FCFS's time keeps up with them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A point of a panel."""

    panel: Panel
    x: float

    def __str__(self) -> str:
        return f"{AXIS_WORDS[self.panel.axis]} {self.x:g}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Ours: from `low` to `high` (the same for a single number), and how a table writes it. `comparable` is False where
    nothing could be read: there are no numbers.
    """

    low: Known
    high: Known
    text: str
    comparable: bool = True


Reading = Callable[[Evaluation], Finding]


def times(known: Known) -> str:
    """A ratio as it is written everywhere."""
    return f"{known.bound}{known.value:.2f}x" if known.value < 10 else f"{known.bound}{known.value:.1f}x"


def times_of(ratio: float) -> str:
    """The same, of a number that is known."""
    return times(Known(ratio))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times smaller `number` (each panel's own metric if None) is under `better` than under `worse`."""

    panels: tuple[tuple[Figure, str], ...]
    worse: System
    better: System
    number: str | None = None

    def gains(self, evaluation: Evaluation) -> list[tuple[float, Place]]:
        """All of them, ascending."""
        found: list[tuple[float, Place]] = []
        for figure, title in self.panels:
            panel = figure.panel(title)
            gains = evaluation.gains(panel, self.worse, self.better, self.number)
            found += [(gain.times, Place(panel, gain.x)) for gain in gains]
        return sorted(found, key=lambda pair: pair[0])


def keeps_up(evaluation: Evaluation, place: Place, system: System) -> bool:
    """Whether a system works the jobs off as they come: above that, every mean grows with the length of the trace."""
    own, fcfs = (evaluation.point(place.panel, each, place.x, "duration_s").mean for each in (system, FCFS))
    return own <= KEEPS_UP * fcfs


def gain_range(comparison: Comparison, kept_by: System | None = None) -> Reading:
    """From the least to the greatest; `kept_by`: only where this system keeps up."""

    def read(evaluation: Evaluation) -> Finding:
        gains = comparison.gains(evaluation)
        if kept_by is not None:
            gains = [(gain, place) for gain, place in gains if keeps_up(evaluation, place, kept_by)]
        if not gains:
            nothing = Known(0.0, Bound.OPEN)
            return Finding(nothing, nothing, "not comparable", comparable=False)
        (low, low_at), (high, high_at) = gains[0], gains[-1]
        text = f"{times_of(low)} ({low_at}) to {times_of(high)} ({high_at})"
        return Finding(Known(low), Known(high), text)

    return read


def greatest_gain(comparison: Comparison) -> Reading:
    """The greatest one of all panels."""

    def read(evaluation: Evaluation) -> Finding:
        best, place = comparison.gains(evaluation)[-1]
        text = f"up to {times_of(best)} ({place.panel.title}, {place})"
        return Finding(Known(best), Known(best), text)

    return read


def single(comparison: Comparison, x: float) -> Reading:
    """The gain at one point, or at the nearest that was run."""

    def read(evaluation: Evaluation) -> Finding:
        gain, place = min(comparison.gains(evaluation), key=lambda pair: abs(pair[1].x - x))
        return Finding(Known(gain), Known(gain), f"{times_of(gain)} ({place})")

    return read


def sustained_gain(comparison: Comparison, limit: float) -> Reading:
    """How many times the rate of the worse system the better one sustains within the limit."""

    def read(evaluation: Evaluation) -> Finding:
        ratios: list[Known] = []
        for figure, title in comparison.panels:
            better, worse = (
                evaluation.sustained(figure.panel(title), system, limit, comparison.number)
                for system in (comparison.better, comparison.worse)
            )
            ratios.append(better.over(worse))
        low, high = _extremes(ratios)
        return Finding(low, high, times(low) if len(ratios) == 1 else f"{times(low)} to {times(high)}")

    return read


def _extremes(ratios: list[Known]) -> tuple[Known, Known]:
    """The least and the greatest, as far as they are known: one that is "at least" may be the greatest of all."""
    low, high = (pick(ratios, key=lambda ratio: ratio.value) for pick in (min, max))
    bounds = {ratio.bound for ratio in ratios}
    if Bound.OPEN in bounds:
        return Known(low.value, Bound.OPEN), Known(high.value, Bound.OPEN)
    return (
        Known(low.value, Bound.AT_MOST if Bound.AT_MOST in bounds else low.bound),
        Known(high.value, Bound.AT_LEAST if Bound.AT_LEAST in bounds else high.bound),
    )


def greatest_share(figure: Figure, title: str, system: System, number: str) -> Reading:
    """The greatest value of a share over a panel's axis."""

    def read(evaluation: Evaluation) -> Finding:
        panel = figure.panel(title)
        point = max(evaluation.points(panel, system, number), key=lambda point: point.mean)
        known = Known(point.mean)
        return Finding(known, known, f"up to {point.mean:.2%} ({Place(panel, point.x)})")

    return read
