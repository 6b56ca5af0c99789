"""The CSV files of an evaluation, and reading them back."""

from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.catalogue import FIGURES
from evaluation.panel_metrics import JCT_P95
from evaluation.paper_n26 import MEAN_LATENCY, TAIL_LATENCY
from evaluation.results import Evaluation
from evaluation.tables import HEADER, TableError, read_evaluation, table, table_owner
from evaluation.values import CONCLUDED
from tests.evaluation.tiny_evaluation import FIGURE, TINY


def test_the_table_has_a_row_a_run_and_the_spread_over_the_seeds(evaluation: Evaluation) -> None:
    header, *rows = [line.split(",") for line in table(evaluation, FIGURE).splitlines()]
    assert tuple(header) == HEADER
    points = 2 * 3 + 2 * 3
    assert len(rows) == points * (len(TINY.seeds) + len(("mean", "least", "greatest")))
    value = {row[header.index("seed")]: float(row[header.index("jct_s.mean")]) for row in rows[:5]}
    assert value["least"] == min(value["0"], value["1"])
    assert value["greatest"] == max(value["0"], value["1"])
    assert value["mean"] == pytest.approx((value["0"] + value["1"]) / 2, rel=1e-5)
    assert value["0"] != value["1"]


def test_a_sweep_that_two_panels_draw_stands_in_the_table_once(evaluation: Evaluation) -> None:
    rate = FIGURE.panels[0]
    twice = replace(FIGURE, panels=(rate, replace(rate, title="rate, again", metric=JCT_P95)))
    alone = replace(FIGURE, panels=(rate,))
    assert table(evaluation, twice) == table(evaluation, alone)


def test_figures_that_draw_the_same_runs_share_a_table() -> None:
    assert table_owner(TAIL_LATENCY, FIGURES) is MEAN_LATENCY
    assert table_owner(TAIL_LATENCY, (TAIL_LATENCY,)) is TAIL_LATENCY


def test_what_is_read_back_is_what_was_written(evaluation: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(table(evaluation, FIGURE))
    read = read_evaluation(tmp_path, (FIGURE,), TINY)
    assert read.measured.keys() == evaluation.measured.keys()
    for run, measured in read.measured.items():
        assert measured.numbers == pytest.approx(evaluation.measured[run].numbers, rel=1e-5)
        assert measured.kv_policy == evaluation.measured[run].kv_policy
        assert measured.load == pytest.approx(evaluation.measured[run].load, rel=1e-5)


def test_a_table_that_lacks_a_run_is_refused(evaluation: Evaluation, tmp_path: Path) -> None:
    lines = table(evaluation, FIGURE).splitlines()
    (tmp_path / "tiny.csv").write_text("\n".join(line for line in lines if not line.startswith("rate,load,1.2,FCFS,")))
    with pytest.raises(TableError, match=r"no row of FCFS at load 1\.2, seed 0, of 'rate'"):
        read_evaluation(tmp_path, (FIGURE,), TINY)


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text("panel,x\n")
    with pytest.raises(TableError, match="other columns"):
        read_evaluation(tmp_path, (FIGURE,), TINY)


@pytest.mark.parametrize(
    "broken", ["rate,load,0.5,FCFS,fcfs,recompute,0,2.5", "rate,load,0.5,FCFS,fcfs,recompute,0" + ",?" * 60]
)
def test_a_row_without_its_numbers_is_refused(broken: str, evaluation: Evaluation, tmp_path: Path) -> None:
    header, first, *others = table(evaluation, FIGURE).splitlines()
    assert first.startswith("rate,load,0.5,FCFS,fcfs,recompute,0,")
    (tmp_path / "tiny.csv").write_text("\n".join([header, broken, *others]))
    with pytest.raises(TableError, match="something else than numbers"):
        read_evaluation(tmp_path, (FIGURE,), TINY)


def test_a_table_of_another_scale_is_refused(evaluation: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text(table(evaluation, FIGURE))
    with pytest.raises(TableError, match="runs of 12 jobs, not 13"):
        read_evaluation(tmp_path, (FIGURE,), replace(TINY, jobs=13))


def test_the_committed_tables_hold_every_run_of_every_figure(committed: Evaluation) -> None:
    assert set(committed.measured) == {run for figure in FIGURES for run in figure.runs(CONCLUDED)}
