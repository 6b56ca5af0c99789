"""Workloads of other kinds: each kind on several servers, and what its lengths are called."""

from collections import Counter
from pathlib import Path
from statistics import fmean, median

import pytest

from evaluation.default_policy.cells import CELLS, FCFS_FORMS, GITTINS, SRPT
from evaluation.default_policy.drawn import DRAWN_CELLS
from evaluation.default_policy.judging import verdicts
from evaluation.default_policy.other_lengths import OTHER_LENGTHS
from evaluation.default_policy.others import EACH, OTHER_CELLS, other_cell
from evaluation.default_policy.pages import summary, table
from evaluation.default_policy.results import read_results
from evaluation.default_policy.traffic import Shape, jobs_of

COMMITTED = Path(__file__).parents[3] / "docs" / "policy"
CONTEXT_TOKENS = 8192


def outputs(kind: str) -> list[int]:
    return [job.output_tokens for job in jobs_of(Shape(kind, 4000), 1, 1.0)]


def test_a_number_always_draws_the_same_cell_and_each_kind_has_several() -> None:
    assert [other_cell(number) for number in range(len(OTHER_CELLS))] == list(OTHER_CELLS)
    assert Counter(cell.shape.kind for cell in OTHER_CELLS) == dict.fromkeys(OTHER_LENGTHS, EACH)
    assert len({cell.title for cell in OTHER_CELLS}) == len(OTHER_CELLS)
    assert {cell.pool for cell in OTHER_CELLS} == {"ample", "quarter"}


def test_no_seed_is_one_that_other_cells_have() -> None:
    others = {seed for cell in (*CELLS, *DRAWN_CELLS) for seed in cell.seeds}
    assert not others & {seed for cell in OTHER_CELLS for seed in cell.seeds}


def test_each_is_judged_against_every_form_of_fcfs_that_differs_there_and_beside_the_oracle() -> None:
    for cell in OTHER_CELLS:
        assert {GITTINS, SRPT} <= set(cell.contenders)
        forms = [one for one in cell.contenders if one in FCFS_FORMS]
        assert len(forms) == (len(FCFS_FORMS) if cell.pool == "quarter" else 1)


@pytest.mark.parametrize("kind", OTHER_LENGTHS)
def test_every_job_fits_the_context(kind: str) -> None:
    for job in jobs_of(Shape(kind, 4000), 2, 1.0):
        assert job.prompt_tokens + job.output_tokens <= CONTEXT_TOKENS


def test_the_lengths_are_what_their_kinds_are_called() -> None:
    assert set(outputs("256 tokens each")) == {256}
    assert fmean(outputs("1 to 1024 tokens")) == pytest.approx(512.5, rel=0.03)
    reports = [length for length in outputs("answers and reports") if length > 1000]
    assert len(reports) == pytest.approx(400, rel=0.15)
    assert sum(length == 512 for length in outputs("cut at 512")) == pytest.approx(0.42 * 4000, rel=0.1)
    assert max(outputs("labels")) == 10
    growing = outputs("tenfold halfway")
    assert median(growing[2000:]) == pytest.approx(10 * median(growing[:2000]), rel=0.15)


def test_the_committed_table_is_that_of_the_committed_results() -> None:
    judged = list(verdicts(read_results((COMMITTED / "others.csv").read_text().splitlines()), OTHER_CELLS))
    written = (COMMITTED / "others.md").read_text()
    assert summary(judged) in written
    assert table(judged) in written
