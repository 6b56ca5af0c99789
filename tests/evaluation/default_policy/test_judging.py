"""Runs become verdicts, verdicts a table and a page; the committed ones are those of the committed results."""

from pathlib import Path

import pytest

from evaluation.default_policy.cells import (
    AMPLE,
    CELLS,
    CURVE_CELLS,
    FCFS_RECOMPUTE,
    GITTINS,
    QUICK_CELLS,
    SCARCE,
    SKIP_JOIN,
    SRPT,
    Cell,
    Contender,
)
from evaluation.default_policy.judging import Verdict, most_load, verdicts
from evaluation.default_policy.pages import PAGE, PageError, filled, summary, table
from evaluation.default_policy.results import Results, ResultsError, as_csv, read_results
from evaluation.default_policy.running import NUMBERS, Offered, RunOf, execute
from evaluation.default_policy.traffic import Shape

COMMITTED = Path(__file__).parents[3] / "docs" / "policy"
CELL = Cell("tiny", "llama-3-8b-h100", 4, Shape("zipf", 40, theta=1.2), (0.5, 1.0), (3, 4))


def results_of(better: float, **numbers: float) -> Results:
    """Every contender has the same numbers, but gittins' times are shorter by a factor; `numbers` are gittins' own."""
    runs: dict[RunOf, dict[str, float]] = {}
    for cell, load, seed in CELL.points():
        for contender in cell.contenders:
            factor = better if contender is GITTINS else 1.0
            row = {name: 2.0 / factor if name.endswith("_s") else 1.0 for name in NUMBERS}
            row |= {"tokens_per_s": 100.0, "silence_p99_s": 1.0, "within": 0.5}
            runs[RunOf(cell, load, seed, contender)] = row | (numbers if contender is GITTINS else {})
    points = {(cell, load, seed): Offered(1.0, 1000) for cell, load, seed in CELL.points()}
    return read_results(as_csv(runs, points).splitlines())


def verdict_of(results: Results) -> Verdict:
    return next(iter(verdicts(results, (CELL,))))


def test_what_is_written_is_read_back() -> None:
    results = results_of(4.0)
    assert results.mean(CELL, 1.0, GITTINS, "mean_s") == pytest.approx(0.5)
    assert results.numbers(CELL, 1.0, SKIP_JOIN, "mean_s") == [2.0, 2.0]
    with pytest.raises(ResultsError, match="unknown"):
        results.mean(CELL, 1.0, Contender("unknown", GITTINS.policy, "proactive"), "mean_s")


def test_a_contender_stands_over_the_best_form_of_fcfs() -> None:
    standing = verdict_of(results_of(4.0)).of(GITTINS)
    assert (standing.mean, standing.p99, standing.throughput) == (0.25, 0.25, 1.0)
    assert verdict_of(results_of(4.0)).best is FCFS_RECOMPUTE


def test_what_holds_is_no_miss() -> None:
    assert verdict_of(results_of(1.0)).misses == ()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"mean_s": 2.12}, "mean 1.06x"),
        ({"p99_s": 2.5}, "P99 1.25x"),
        ({"tokens_per_s": 98.0}, "throughput 0.980x"),
        ({"within": 0.4}, "within limits 40.0% against 50.0%"),
        ({"silence_p99_s": 2.5}, "silence 2.5 s"),
    ],
)
def test_every_miss_is_told_with_the_oracles_figure(numbers: dict[str, float], said: str) -> None:
    (miss,) = verdict_of(results_of(1.0, **numbers)).misses
    assert miss.startswith(said)
    assert "oracle" in miss


def test_the_page_takes_its_numbers_from_the_results() -> None:
    judged = list(verdicts(results_of(4.0), (CELL,)))
    text = "{{mean|tiny|0.5|gittins}} {{gain|tiny|1|gittins}} {{fcfs_mean_s|tiny|1}} {{within|tiny|1|SRPT oracle}}"
    assert filled(text, judged) == "0.25x 4.0x 2.0 s 50%"
    for wrong in ("{{mean|tiny|2|gittins}}", "{{mean|tiny|1|nobody}}", "{{speed|tiny|1|gittins}}", "{{mean|tiny|1}}"):
        with pytest.raises(PageError, match=wrong[2:8]):
            filled(wrong, judged)


def test_a_rate_is_that_of_the_load_up_to_which_nearly_all_jobs_are_within_the_limits() -> None:
    cell = Cell("wave", "llama-3-8b-h100", 4, Shape("zipf", 40, theta=1.2), (0.5, 1.0, 1.5, 2.0), (3,))
    within = {FCFS_RECOMPUTE: (1.0, 0.9, 0.5, 0.2), GITTINS: (1.0, 1.0, 0.9, 0.9), SRPT: (1.0, 1.0, 1.0, 1.0)}
    runs = {
        RunOf(cell, load, seed, one): dict.fromkeys(NUMBERS, 1.0) | {"within": within.get(one, within[SRPT])[place]}
        for place, load in enumerate(cell.loads)
        for seed in cell.seeds
        for one in cell.contenders
    }
    points = {(cell, load, seed): Offered(1.0, 1000) for cell, load, seed in cell.points()}
    judged = list(verdicts(read_results(as_csv(runs, points).splitlines()), (cell,)))
    assert most_load(judged, FCFS_RECOMPUTE) == pytest.approx(0.75)
    assert most_load(judged, GITTINS) == pytest.approx(1.25)
    assert most_load(judged, SRPT) is None
    assert filled("{{rate|wave|gittins}}", judged) == "1.67x"
    for wrong in ("{{rate|wave|SRPT oracle}}", "{{rate|wave|nobody}}", "{{rate|sea|gittins}}", "{{rate|wave}}"):
        with pytest.raises(PageError, match="no such number"):
            filled(wrong, judged)


def test_the_table_has_a_row_for_every_point() -> None:
    judged = list(verdicts(results_of(1.0, p99_s=3.0), (CELL,)))
    rows = table(judged).splitlines()
    assert len(rows) == 2 + 2
    assert "P99 1.50x" in rows[-1]
    assert summary(judged) == "Of 2 points 0 hold in all that is asked."


def test_cells_are_named_apart_and_have_what_the_judgement_asks_for() -> None:
    points = [(cell.title, load) for cell in (*CELLS, *CURVE_CELLS) for load in cell.loads]
    assert len(points) == len(set(points))
    assert {SKIP_JOIN, GITTINS, SRPT} <= set(AMPLE) <= set(SCARCE)


def test_a_look_runs_for_real() -> None:
    cells = tuple(Cell(c.title, c.profile, c.batch, Shape("zipf", 60, theta=1.4), (1.0,), (1,)) for c in QUICK_CELLS)
    runs, points = execute(cells, 1, lambda done: None)
    judged = list(verdicts(read_results(as_csv(runs, points).splitlines()), cells))
    assert len(judged) == len(cells)
    assert all(0.1 < verdict.of(GITTINS).mean < 10 for verdict in judged)


def test_the_committed_page_and_table_are_those_of_the_committed_results() -> None:
    lines = (COMMITTED / "results.csv").read_text(encoding="utf-8").splitlines()
    judged = list(verdicts(read_results(lines), CELLS))
    assert (COMMITTED / "README.md").read_text(encoding="utf-8") == filled(PAGE.read_text(encoding="utf-8"), judged)
    assert table(judged) in (COMMITTED / "table.md").read_text(encoding="utf-8")
