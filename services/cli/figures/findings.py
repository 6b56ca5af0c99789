"""Ways to read one number off an evaluation: what a claim of the papers is compared with."""

from collections.abc import Callable
from dataclasses import dataclass

from services.cli.figures.evaluation import Evaluation, Gain
from services.cli.figures.interpolation import Bound, Known
from services.cli.figures.values import Axis, Figure, Panel, System

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


@dataclass(frozen=True, slots=True)
class Finding:
    """Ours: from `low` to `high` (the same for a single number), and the words that say where. `loads` are those
    behind it, lowest and highest. `worse_load`: the least load that the system compared with sustains.
    """

    low: Known
    high: Known
    text: str
    loads: tuple[float, float]
    worse_load: Known | None = None


Reading = Callable[[Evaluation], Finding]


def times(known: Known) -> str:
    """A ratio as it is written everywhere."""
    return f"{known.bound}{known.value:.2f}x" if known.value < 10 else f"{known.bound}{known.value:.1f}x"


def at(panel: Panel, gain: Gain) -> str:
    """Where a gain is."""
    return f"{AXIS_WORDS[panel.axis]} {gain.x:g}"


def gain_range(figure: Figure, title: str, worse: System, better: System, number: str | None = None) -> Reading:
    """How many times smaller `number` (the panel's own metric if None) is under `better`, over a panel's axis."""

    def read(evaluation: Evaluation) -> Finding:
        panel = figure.panel(title)
        gains = sorted(evaluation.gains(panel, worse, better, number), key=lambda gain: gain.times)
        low, high = gains[0], gains[-1]
        text = f"{times(Known(low.times))} ({at(panel, low)}) to {times(Known(high.times))} ({at(panel, high)})"
        loads = [gain.load for gain in gains]
        return Finding(Known(low.times), Known(high.times), text, (min(loads), max(loads)))

    return read


def greatest_gain(
    panels: tuple[tuple[Figure, str], ...], worse: System, better: System, number: str | None = None
) -> Reading:
    """The greatest such gain of several panels."""

    def read(evaluation: Evaluation) -> Finding:
        found = [
            (gain, figure.panel(title))
            for figure, title in panels
            for gain in evaluation.gains(figure.panel(title), worse, better, number)
        ]
        best, panel = max(found, key=lambda pair: pair[0].times)
        text = f"up to {times(Known(best.times))} ({panel.title}, {at(panel, best)})"
        return Finding(Known(best.times), Known(best.times), text, (best.load, best.load))

    return read


def sustained_gain(
    figure: Figure, titles: tuple[str, ...], worse: System, better: System, limit: float, number: str | None = None
) -> Reading:
    """How many times the rate of `worse` the system `better` sustains within the limit, panel by panel."""

    def read(evaluation: Evaluation) -> Finding:
        parts: list[str] = []
        ratios: list[Known] = []
        loads: list[Known] = []
        for title in titles:
            panel = figure.panel(title)
            rates = [evaluation.sustained(panel, system, limit, number) for system in (better, worse)]
            ratios.append(rates[0].over(rates[1]))
            capacity = evaluation.at(panel, better, evaluation.scale.of(panel.points)[0])[0].capacity_per_s
            loads += [Known(rate.value / capacity, rate.bound) for rate in rates]
            reached = " against ".join(f"{rate.bound}{rate.value:.2g}" for rate in rates)
            parts.append(f"{title}: {times(ratios[-1])} ({reached} jobs/s)")
        ascending = sorted(ratios, key=lambda ratio: ratio.value)
        values = [load.value for load in loads]
        worse_load = min(loads[1::2], key=lambda load: load.value)
        return Finding(ascending[0], ascending[-1], "; ".join(parts), (min(values), max(values)), worse_load)

    return read


def single(figure: Figure, title: str, worse: System, better: System, x: float, number: str | None = None) -> Reading:
    """A gain at one point of a panel, or at the nearest that was run."""

    def read(evaluation: Evaluation) -> Finding:
        panel = figure.panel(title)
        gain = min(evaluation.gains(panel, worse, better, number), key=lambda gain: abs(gain.x - x))
        known = Known(gain.times)
        return Finding(known, known, f"{times(known)} ({at(panel, gain)})", (gain.load, gain.load))

    return read


def greatest_share(figure: Figure, title: str, system: System, number: str) -> Reading:
    """The greatest value of a share over a panel's axis."""

    def read(evaluation: Evaluation) -> Finding:
        panel = figure.panel(title)
        point = max(evaluation.points(panel, system, number), key=lambda point: point.mean)
        known = Known(point.mean, Bound.EXACT)
        return Finding(
            known, known, f"up to {point.mean:.1%} ({AXIS_WORDS[panel.axis]} {point.x:g})", (point.load,) * 2
        )

    return read
