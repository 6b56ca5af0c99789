"""docs/evaluation/REPORT.md: the conclusions, which people wrote, over the tables and pictures of an evaluation."""

from collections.abc import Iterator

from evaluation.drawing import GAPS_SUFFIX, caption_of
from evaluation.report_tables import (
    MarkdownTable,
    capacities_table,
    claims_table,
    gaps_table,
    sustained_table,
    workloads_table,
)
from evaluation.results import Evaluation
from evaluation.tables import table_owner
from evaluation.values import Figure
from services.experiments.figure_pages import PICTURE_SUFFIX

COMMANDS = {"quick": "make figures QUICK=1", "main": "make figures", "full": "make figures FULL=1"}

_TABLES = """\
The tables and pictures below are generated. "FCFS" is FCFS in its best form for each run: KV that grows, and is
recomputed (as in vLLM) or moved to the host where it does not fit, or that is reserved at admission; the CSV names the
form. "FCFS, reserves" is the last of these alone (Orca). A ratio above 1 is in favour of the policy that is compared
with it: the papers' skip-join MLFQ, or gittins, the default. A verdict compares the numbers of skip-join with the
papers' to one decimal; where the papers compare with another engine, only its order of jobs is simulated.
Met: our least number reaches theirs. Partly met: our greatest does. Exceeded: all of ours are greater, which for peak
KV is no merit.

The versions of the papers are v1 and v3 (arXiv 2305.05920) and N26 (NSDI 2026). A rate at SLO is the greatest one whose
latency per output token stays within the limit. A sweep that several panels draw stands in the CSV once, under the
title of the first of them."""

_SECTIONS = (
    (
        "Both policies beside FCFS, workload by workload",
        "Times are FCFS's over those of skip-join MLFQ / gittins, means over the seeds. Worst gaps are seconds, "
        "FCFS → skip-join MLFQ / gittins.",
        workloads_table,
    ),
    ("The papers' claims", "", claims_table),
    (
        "The load that a latency limit allows",
        "The limit is on the latency per output token (its mean, or its P95 where the figure says so). A bound (≥, ≤) "
        "stands where no measured rate crosses the limit.",
        sustained_table,
    ),
    (
        "Gaps inside streams",
        "Seconds between consecutive tokens of a job, at the point whose load is nearest to 1.",
        gaps_table,
    ),
    (
        "What a load of 1 is",
        "The rate at which FCFS works off a backlog in its best form.",
        capacities_table,
    ),
)


def _section(title: str, note: str, table: MarkdownTable) -> Iterator[str]:
    yield from (f"### {title}", "")
    if note:
        yield from (note, "")
    yield from table.lines
    yield ""


def _figure(evaluation: Evaluation, figure: Figure) -> Iterator[str]:
    owner = table_owner(figure, evaluation.figures).name
    gaps = f"[gaps inside its streams]({owner}{GAPS_SUFFIX}{PICTURE_SUFFIX})"
    yield from (f"### {figure.title}", "")
    yield from (f"{figure.shows} · [CSV]({owner}.csv) · {gaps}", "")
    yield from (f"![{figure.title}]({figure.name}{PICTURE_SUFFIX})", "")
    yield from (caption_of(evaluation, figure), "")


def _what_was_run(evaluation: Evaluation) -> str:
    scale = evaluation.scale
    failed = sum(measured.numbers["failed"] for measured in evaluation.measured.values())
    return (
        f"Scale: {scale.name}. Simulations: {len(evaluation.measured):,}. Jobs a simulation: {scale.jobs:,} or more. "
        f"Seeds: {', '.join(map(str, scale.seeds))}. Failed jobs: {failed:,.0f}. Command: `{COMMANDS[scale.name]}`."
    )


def report(evaluation: Evaluation, conclusions: str) -> str:
    """The whole text, below conclusions that are ready to be read."""
    lines = [*conclusions.strip().splitlines(), "", "## Tables", "", _TABLES, "", _what_was_run(evaluation), ""]
    for title, note, table in _SECTIONS:
        lines += _section(title, note, table(evaluation))
    lines += ["## Pictures", ""]
    for figure in evaluation.figures:
        lines += _figure(evaluation, figure)
    return "\n".join(lines).rstrip() + "\n"
