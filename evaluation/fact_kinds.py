"""The kinds of facts that a sentence can state: a number read off lines, words that hold of them, a setting, a number
of the papers or the verdict on it.

Each tells what the sentence should say, in the words that the sentence uses: `"{value:.1f}x at load {x:g}"`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Protocol

from evaluation.claims import Verdict, claim_of
from evaluation.results import Evaluation
from evaluation.systems import SKIP_JOIN
from evaluation.values import Figure, System

Span = tuple[float, float]
"""From which to which x points count, both included."""

ALL: Span = (-inf, inf)


class Fact(Protocol):
    """What a sentence states."""

    def told(self, evaluation: Evaluation) -> str:
        """What the sentence should say in its place."""
        ...


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A number of a system along the axis of some panels; where `over` is given, as a multiple of that system's."""

    figure: Figure
    panels: tuple[str, ...]
    number: str
    of: System
    over: System | None = None

    def points(self, evaluation: Evaluation, span: Span = ALL) -> Iterator[tuple[float, float]]:
        """Pairs of x and value."""
        for title in self.panels:
            panel = self.figure.panel(title)
            if self.over is None:
                found = [(point.x, point.mean) for point in evaluation.points(panel, self.of, self.number)]
            else:
                gains = evaluation.gains(panel, self.of, self.over, self.number)
                found = [(gain.x, gain.times) for gain in gains]
            yield from ((x, value) for x, value in found if span[0] <= x <= span[1])


@dataclass(frozen=True, slots=True)
class MostOf:
    """The greatest value of a line."""

    line: ResultLine
    form: str
    span: Span = ALL

    def told(self, evaluation: Evaluation) -> str:
        """The value, and where it is if the form asks for that."""
        x, value = max(self.line.points(evaluation, self.span), key=lambda point: point[1])
        return self.form.format(value=value, x=x)


@dataclass(frozen=True, slots=True)
class LeastOf:
    """The least value of a line."""

    line: ResultLine
    form: str
    span: Span = ALL

    def told(self, evaluation: Evaluation) -> str:
        """The value, and where it is if the form asks for that."""
        x, value = min(self.line.points(evaluation, self.span), key=lambda point: point[1])
        return self.form.format(value=value, x=x)


@dataclass(frozen=True, slots=True)
class SustainedLoad:
    """The loads up to which a system keeps a latency limit: {least} and {most} of some panels."""

    figure: Figure
    panels: tuple[str, ...]
    system: System
    limit_s: float
    form: str

    def told(self, evaluation: Evaluation) -> str:
        """Both, as far as the form asks for them."""
        loads: list[float] = []
        for title in self.panels:
            panel = self.figure.panel(title)
            capacity = evaluation.at(panel, self.system, evaluation.scale.of(panel.points)[0])[0].capacity_per_s
            loads.append(evaluation.sustained(panel, self.system, self.limit_s).value / capacity)
        return self.form.format(least=min(loads), most=max(loads))


def value_at(line: ResultLine, x: float, form: str) -> MostOf:
    """The value of a line of one panel at one point."""
    assert len(line.panels) == 1, "one panel has one value at a point"
    return MostOf(line, form, (x, x))


@dataclass(frozen=True, slots=True)
class Always:
    """Words that hold as long as every value of a line lies between two bounds."""

    line: ResultLine
    words: str
    at_least: float = -inf
    at_most: float = inf
    span: Span = ALL

    def told(self, evaluation: Evaluation) -> str:
        """The words themselves, or the first point that breaks them."""
        for x, value in self.line.points(evaluation, self.span):
            if not self.at_least <= value <= self.at_most:
                return f"not so at {x:g}, where the value is {value:.3g}"
        return self.words


@dataclass(frozen=True, slots=True)
class Growing:
    """Words that hold as long as the values of a line of one panel grow from each point to the next."""

    line: ResultLine
    words: str

    def told(self, evaluation: Evaluation) -> str:
        """The words themselves, or the first point that breaks them."""
        for (_, before), (x, value) in pairwise(self.line.points(evaluation)):
            if value < before:
                return f"not so at {x:g}, where the value falls from {before:.3g} to {value:.3g}"
        return self.words


@dataclass(frozen=True, slots=True)
class Judged:
    """Words that hold as long as a claim of the papers has this verdict."""

    key: str
    verdict: Verdict
    words: str

    def told(self, evaluation: Evaluation) -> str:
        """The words themselves, or the verdict that it is by now."""
        claim = claim_of(self.key)
        finding = claim.ours(evaluation)
        verdict = claim.verdict(finding) if finding is not None else None
        return self.words if verdict is self.verdict else f"not so: the verdict is '{verdict}'"


@dataclass(frozen=True, slots=True)
class DeclaredFact:
    """Something that is read off the declarations or the evaluation as a whole, already written."""

    read: Callable[[Evaluation], str]

    def told(self, evaluation: Evaluation) -> str:
        """It."""
        return self.read(evaluation)


def setting(text: object) -> DeclaredFact:
    """A setting of the runs."""
    return DeclaredFact(lambda _: str(text))


def papers(key: str) -> DeclaredFact:
    """What the papers claim, as the table of claims has it."""
    return DeclaredFact(lambda _: claim_of(key).paper)


def ours_of_claim(key: str, form: str, system: System = SKIP_JOIN) -> DeclaredFact:
    """What the table of claims has of a policy of ours; the form may use {low} and {high}."""

    def read(evaluation: Evaluation) -> str:
        finding = claim_of(key).ours(evaluation, system)
        assert finding is not None, "conclusions are of all figures"
        return form.format(low=finding.low.value, high=finding.high.value)

    return DeclaredFact(read)
