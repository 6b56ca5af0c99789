"""Drawn workloads: always the same ones, of every kind, and not those that were chosen."""

from pathlib import Path

from evaluation.default_policy.cells import CELLS, FCFS_FORMS, GITTINS, SRPT
from evaluation.default_policy.drawn import DRAWN, DRAWN_CELLS, drawn_cell
from evaluation.default_policy.judging import verdicts
from evaluation.default_policy.pages import summary, table
from evaluation.default_policy.results import read_results

COMMITTED = Path(__file__).parents[3] / "docs" / "policy"


def test_a_number_always_draws_the_same_cell_and_each_another_one() -> None:
    assert [drawn_cell(number) for number in range(DRAWN)] == list(DRAWN_CELLS)
    assert len({(cell.shape, cell.batch, cell.loads, cell.seeds) for cell in DRAWN_CELLS}) == DRAWN
    assert len({cell.title for cell in DRAWN_CELLS}) == DRAWN


def test_every_kind_of_workload_server_and_load_is_drawn() -> None:
    assert {cell.shape.kind for cell in DRAWN_CELLS} == {"conv", "code", "zipf", "sharegpt", "alpaca"}
    assert {cell.batch for cell in DRAWN_CELLS} == {8, 16, 32, 64, 128, 256}
    assert {cell.pool for cell in DRAWN_CELLS} == {"ample", "quarter"}
    assert {cell.chunk for cell in DRAWN_CELLS} == {None, 512}
    assert {load for cell in DRAWN_CELLS for load in cell.loads} == {0.6, 0.8, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3}
    assert any(cell.shape.wave for cell in DRAWN_CELLS)


def test_no_seed_is_one_that_a_constant_was_chosen_on() -> None:
    chosen = {seed for cell in CELLS for seed in cell.seeds}
    assert not chosen & {seed for cell in DRAWN_CELLS for seed in cell.seeds}


def test_each_is_judged_against_every_form_of_fcfs_that_differs_there_and_beside_the_oracle() -> None:
    for cell in DRAWN_CELLS:
        assert {GITTINS, SRPT} <= set(cell.contenders)
        forms = [one for one in cell.contenders if one in FCFS_FORMS]
        assert len(forms) == (len(FCFS_FORMS) if cell.pool == "quarter" else 1)


def test_the_committed_table_is_that_of_the_committed_results() -> None:
    judged = list(verdicts(read_results((COMMITTED / "drawn.csv").read_text().splitlines()), DRAWN_CELLS))
    written = (COMMITTED / "drawn.md").read_text()
    assert summary(judged) in written
    assert table(judged) in written
