"""What simulations gave is kept, so that an interrupted evaluation goes on where it was."""

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evaluation import finished_runs
from evaluation.command import evaluate
from evaluation.finished_runs import FinishedRuns, code_digest, sources
from evaluation.results import Evaluation
from services.experiments.named_profiles import PROFILES
from tests.evaluation.tiny_evaluation import CODE, FIGURE, TINY, evaluated


def test_an_interrupted_evaluation_goes_on_where_it_was(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluated(tmp_path)
    files = sorted((tmp_path / f"code-{CODE}").glob("*.json"))
    assert len(files) == len(evaluation.measured)
    marked = json.loads(files[0].read_text())
    files[0].write_text(json.dumps({**marked, "rate_per_s": 123.0}))
    files[1].write_text("{")
    files[2].unlink()
    again = evaluated(tmp_path)
    assert sum(measured.rate_per_s == 123.0 for measured in again.measured.values()) == 1, "run again"
    others = {run: measured for run, measured in again.measured.items() if measured.rate_per_s != 123.0}
    assert others == {run: evaluation.measured[run] for run in others}
    assert list(again.measured) == list(evaluation.measured)


def test_what_is_finished_is_shown_as_done(tmp_path: Path) -> None:
    evaluated(tmp_path)
    told: list[tuple[int, int]] = []
    evaluate((FIGURE,), TINY, FinishedRuns(tmp_path, CODE), 1, lambda _, done, total: told.append((done, total)))
    jobs = TINY.jobs * len(set(FIGURE.runs(TINY)))
    assert told[-1] == (jobs, jobs)


def test_other_code_and_another_profile_run_all_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = next(FIGURE.runs(TINY))
    mine = FinishedRuns(tmp_path, CODE)
    profiles = tmp_path / "profiles"
    shutil.copytree(PROFILES, profiles)
    monkeypatch.setattr(finished_runs, "PROFILES", profiles)
    before = mine.kept(run).path
    assert mine.kept(run).path == before
    with (profiles / f"{run.server.profile}.json").open("a") as file:
        file.write(" ")
    assert mine.kept(run).path != before
    (tmp_path / "notes").mkdir()
    del mine
    FinishedRuns(tmp_path, "0" * 16)
    assert {path.name for path in tmp_path.iterdir()} == {"code-" + "0" * 16, "notes", "profiles"}


def test_what_other_code_has_finished_stays_while_it_is_at_work(evaluation: Evaluation, tmp_path: Path) -> None:
    run, measured = next(iter(evaluation.measured.items()))
    at_work = FinishedRuns(tmp_path, CODE)
    kept = at_work.kept(run)
    other = FinishedRuns(tmp_path, "0" * 16)
    kept.write(measured)
    assert kept.read() == measured
    assert other.kept(run).path.parent.is_dir()
    del at_work
    FinishedRuns(tmp_path, "1" * 16)
    assert {path.name for path in tmp_path.iterdir()} == {"code-" + "0" * 16, "code-" + "1" * 16}


def test_a_folder_that_is_removed_while_it_is_taken_is_made_anew(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, measured = next(iter(evaluation.measured.items()))
    folder = tmp_path / f"code-{CODE}"
    lock: Callable[[int, int], None] = fcntl.flock
    times = iter(range(2))

    def remove_first(held: int, operation: int) -> None:
        if next(times, None) is not None:
            shutil.rmtree(folder)
        lock(held, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    mine = FinishedRuns(tmp_path, CODE)
    assert next(times, None) is None
    mine.kept(run).write(measured)
    FinishedRuns(tmp_path, "0" * 16)
    assert mine.kept(run).read() == measured, "its lock is that of the folder that is there"


def test_the_code_of_a_run_is_what_a_simulation_imports_and_no_more() -> None:
    names = {"/".join(path.parts[-2:]) for path in sources()}
    assert {"machine/scheduler.py", "machine/kv_manager.py", "evaluation/measures.py"} <= names
    assert not {"evaluation/drawing.py", "evaluation/report.py", "evaluation/catalogue.py"} & names
    assert code_digest() == code_digest()
    assert len(code_digest()) == len(CODE)
