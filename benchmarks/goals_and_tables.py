"""The results of a part: goals met or missed, and tables; and both as Markdown."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


def tell(text: str) -> None:
    """Prints a line on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of the project, and the figure measured."""

    text: str
    asked: str
    measured: str
    met: bool


def at_least(text: str, measured: float, least: float, unit: str = "") -> Goal:
    """A figure that must not be smaller."""
    return Goal(text, f">= {least:g}{unit}", f"{measured:.4g}{unit}", measured >= least)


def at_most(text: str, measured: float, most: float, unit: str = "") -> Goal:
    """A figure that must not be greater."""
    return Goal(text, f"<= {most:g}{unit}", f"{measured:.4g}{unit}", measured <= most)


@dataclass(frozen=True, slots=True)
class Table:
    """Some figures of a part."""

    title: str
    heading: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def seconds(value: float | None) -> str:
    """Three significant digits; a missing value is a dash."""
    return "-" if value is None else f"{value:.3g}"


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; figures to the right, the first column to the left."""
    lines = [heading, [":---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals_table(goals: Sequence[Goal]) -> str:
    """All goals, in their order."""
    rows = [(goal.text, goal.asked, goal.measured, "yes" if goal.met else "**no**") for goal in goals]
    return markdown_table(("goal", "asked", "measured", "met"), rows)


def section(table: Table) -> str:
    """A table under its title and its note."""
    parts = [f"### {table.title}", table.note, markdown_table(table.heading, table.rows)]
    return "\n\n".join(part for part in parts if part)
