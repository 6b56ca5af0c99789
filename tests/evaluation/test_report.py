"""The report: conclusions by people over tables and pictures by code."""

import re

import pytest

from evaluation.catalogue import FIGURES
from evaluation.claims import CLAIMS
from evaluation.command import DEFAULT_OUT
from evaluation.paper_n26 import MEAN_LATENCY, TAIL_LATENCY
from evaluation.paper_v1 import OVERALL
from evaluation.report import report
from evaluation.report_tables import (
    NOT_RUN,
    MarkdownTable,
    claims_table,
    gaps_table,
    sustained_table,
    workloads_table,
)
from evaluation.results import Evaluation
from evaluation.systems import GITTINS, RESERVING, SKIP_JOIN
from evaluation.tables import table_owner
from evaluation.values import MAIN, QUICK, Run
from tests.evaluation.made_evaluations import fastserve_wins, made

MOST_CELL_CHARACTERS = 160


def cells(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in row.strip("|").split("|")]


def test_conclusions_stand_first_and_tables_and_pictures_follow() -> None:
    text = report(made(MAIN, FIGURES, fastserve_wins(2.0)), "# A title\n\nWritten by hand.\n")
    headings = [line for line in text.splitlines() if line.startswith(("# ", "## "))]
    assert text.startswith("# A title\n\nWritten by hand.\n\n## Tables\n")
    assert headings == ["# A title", "## Tables", "## Pictures"]


def test_no_cell_of_the_committed_tables_is_long(committed: Evaluation) -> None:
    assert [cell for cell in cells(report(committed, "")) if len(cell) > MOST_CELL_CHARACTERS] == []
    assert cells("| a | b |") == ["a", "b"]


def test_every_claim_has_a_row_with_the_papers_number_ours_and_a_verdict() -> None:
    rows = claims_table(made(MAIN, FIGURES, fastserve_wins(2.0))).rows
    assert [(row[0], row[2]) for row in rows] == [(claim.where, claim.paper) for claim in CLAIMS]
    by_key = dict(zip((claim.key for claim in CLAIMS), rows, strict=True))
    of_both = "2.00x (CV 1) to 2.00x (CV 8)"
    assert by_key["v1-cv-fcfs"][1:] == ("Orca", "2.3-5.1x", "FCFS", of_both, "missed", of_both)
    assert by_key["v1-cv-fcfs-reserves"][3] == "FCFS, reserves"
    assert by_key["ablation-mlfq"][1:4] == ("naive MLFQ", "up to 1.87x", "naive MLFQ")


def test_a_claim_whose_figure_was_not_run_says_so() -> None:
    rows = claims_table(made(MAIN, (OVERALL,), fastserve_wins(2.0))).rows
    assert {row[4:] for claim, row in zip(CLAIMS, rows, strict=True) if claim.figure is not OVERALL} == {
        (NOT_RUN, "not run", NOT_RUN)
    }


def test_workloads_show_gains_and_losses_at_two_loads_and_what_streams_pay() -> None:
    def rule(run: Run) -> float:
        seconds = {SKIP_JOIN: 0.5, GITTINS: 0.25, RESERVING: 3.0}
        return seconds.get(run.system, 1.0) if run.traffic.load == 1.0 else 1.0

    def gaps(run: Run) -> dict[str, float]:
        return {"worst_gap_s.p95": {SKIP_JOIN: 9.0, GITTINS: 2.0}.get(run.system, 0.25)}

    best, reserving = workloads_table(made(MAIN, (OVERALL,), rule, gaps)).rows
    workload, same, both = "GPT-175B, Zipf lengths, CV 4", "1.00x / 1.00x", "2.00x / 4.00x"
    assert best == (workload, "FCFS", same, both, both, same, both, "0.25 → 9 / 2")
    assert reserving[:4] == (workload, "FCFS, reserves", same, "6.00x / 12.0x")


def test_a_load_that_was_not_run_has_no_number() -> None:
    quick = made(QUICK, (OVERALL,), fastserve_wins(2.0))
    row, _ = workloads_table(quick).rows
    assert QUICK.of(OVERALL.panel("rate, mean").points) == (0.3, 0.8, 1.3)
    assert row[1:4] == ("FCFS", "2.00x / 2.00x", NOT_RUN)


def test_sustained_loads_are_those_at_which_the_limit_is_crossed() -> None:
    def rule(run: Run) -> float:
        most = {SKIP_JOIN: 1.0, GITTINS: 0.8}.get(run.system, 0.5)
        return 0.03 if (run.traffic.load or 0.0) <= most else 3.0

    rows = sustained_table(made(MAIN, (MEAN_LATENCY, TAIL_LATENCY), rule)).rows
    assert [row[:2] for row in rows] == [
        (figure.name, panel.title) for figure in (MEAN_LATENCY, TAIL_LATENCY) for panel in figure.panels
    ]
    assert {row[2:7] for row in rows} == {("0.3", "0.65", "0.65", "1.10", "0.90")}
    assert {row[7:9] for row in rows} == {("1.69x", "1.38x")}


def test_gaps_are_told_once_for_each_server_and_traffic_at_capacity() -> None:
    rows = gaps_table(made(MAIN, (MEAN_LATENCY, TAIL_LATENCY), fastserve_wins(2.0))).rows
    assert [row[:2] for row in rows[:3]] == [
        ("n26-11-mean-latency: OPT-13B, ShareGPT, load 1", system) for system in ("FCFS", "skip-join MLFQ", "gittins")
    ]
    assert len(rows) == 3 * len(MEAN_LATENCY.panels)


def test_every_figure_has_its_picture_its_caption_and_a_link_to_its_numbers() -> None:
    text = report(made(MAIN, FIGURES, fastserve_wins(2.0)), "")
    for figure in FIGURES:
        picture = f"![{figure.title}]({figure.name}.svg)\n\n{figure.caption}"
        assert picture in text
        assert f"[CSV]({table_owner(figure, FIGURES).name}.csv)" in text.partition(picture)[0].rpartition("### ")[2]


def test_every_file_that_the_report_links_is_committed(committed: Evaluation, pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.rootpath / DEFAULT_OUT
    links = set(re.findall(r"\]\(([^)]+)\)", (folder / "REPORT.md").read_text()))
    assert {link for link in links if not (folder / link).exists()} == set()
    assert {path.name for path in folder.iterdir()} - links == {"REPORT.md"}


def test_the_report_says_what_was_run_and_how_to_repeat_it() -> None:
    text = report(made(MAIN, (OVERALL,), fastserve_wins(2.0)), "")
    runs = len(set(OVERALL.runs(MAIN)))
    assert (
        f"Scale: main. Simulations: {runs:,}. Jobs a simulation: 1,000 or more. Seeds: 0. Failed jobs: 0. "
        "Command: `make figures`." in text
    )


def test_a_table_is_a_heading_over_rows() -> None:
    assert list(MarkdownTable(("a", "b"), (("1", "2"),)).lines) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]
