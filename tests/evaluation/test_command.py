"""`fastserve figures`: what it is asked for and what it writes."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation import command
from evaluation.catalogue import FIGURES
from evaluation.command import (
    CONTRADICTED,
    DEFAULT_OUT,
    NOT_WHOLE,
    TITLE,
    chosen,
    main,
    write_report,
    write_tables,
)
from evaluation.drawing import GAPS_SUFFIX
from evaluation.results import Evaluation
from services.runtime.command_line import CommandError, ExitCode
from tests.evaluation.tiny_evaluation import FIGURE, TINY, evaluated, quiet


def write(evaluation: Evaluation, out: Path) -> None:
    out.mkdir(exist_ok=True)
    write_tables(evaluation, out)
    assert write_report(evaluation, out, 1, quiet) == []


def test_a_figure_writes_its_pictures_its_table_and_the_report(evaluation: Evaluation, tmp_path: Path) -> None:
    write(evaluation, tmp_path)
    names = {"tiny.svg", f"tiny{GAPS_SUFFIX}.svg", "tiny.csv", "REPORT.md"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_the_same_seeds_give_the_same_bytes(evaluation: Evaluation, tmp_path: Path) -> None:
    for folder, each in (("one", evaluation), ("other", evaluated(tmp_path / "finished"))):
        write(each, tmp_path / folder)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert b"<dc:date>" not in files["tiny.svg"]


def test_a_report_of_less_than_all_at_the_committed_scale_has_no_conclusions(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    write(evaluation, tmp_path)
    text = (tmp_path / "REPORT.md").read_text()
    assert text.startswith(f"{TITLE}\n\n{NOT_WHOLE}\n\n## Tables\n")
    assert "When does it pay?" not in text


def test_the_command_writes_the_figures_that_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = ["--finished", str(tmp_path / "finished")]
    out = tmp_path / "out"
    assert main(["--quick", "--only", "v1-quantum", "--processes", "1", "--out", str(out), *finished]) == ExitCode.OK
    assert capsys.readouterr().out == f"written to {out}\n"
    assert {path.suffix for path in out.iterdir()} == {".svg", ".csv", ".md"}
    assert "Command: `make figures QUICK=1`" in (out / "REPORT.md").read_text()


@pytest.mark.parametrize("asked", [["--quick"], ["--quick", "--only", "tiny"], ["--only", "tiny"], ["--full"]])
def test_nothing_but_all_figures_at_the_committed_scale_replaces_the_committed_results(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "draw", lambda *_: None)
    other = replace(FIGURE, name="other")
    monkeypatch.setattr(command, "FIGURES", (FIGURE, other))
    for scale in ("QUICK", "FULL"):
        monkeypatch.setattr(command, scale, TINY)
    for scale in ("MAIN", "CONCLUDED"):
        monkeypatch.setattr(command, scale, replace(TINY, name="main"))
    assert main([*asked, "--processes", "1"]) == ExitCode.OK
    assert capsys.readouterr().out == "written to out/evaluation\n"
    assert (tmp_path / "out" / "evaluation" / "REPORT.md").exists()
    assert not (tmp_path / "docs").exists()


def test_what_can_not_be_written_is_told_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIGURES", (FIGURE,))
    monkeypatch.setattr(command, "QUICK", TINY)
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="file"):
        main(
            [
                "--quick",
                "--out",
                str(tmp_path / "file" / "out"),
                "--finished",
                str(tmp_path / "finished"),
                "--processes",
                "1",
            ]
        )
    assert not (tmp_path / "finished").exists()


def test_figures_are_chosen_by_the_beginnings_of_their_names() -> None:
    assert [figure.name for figure in chosen("v1-09-o,n26-17")] == ["v1-09-overall", "n26-17-swap-policies"]
    assert chosen(None) == FIGURES


def test_a_figure_that_does_not_exist_is_refused_in_one_line() -> None:
    with pytest.raises(CommandError, match="'n27'") as refused:
        chosen("v1-09,n27")
    assert refused.value.exit_code == ExitCode.REFUSED


COMMITTED = Path(__file__).parents[2] / DEFAULT_OUT


def copied_tables(folder: Path) -> Path:
    for path in COMMITTED.glob("*.csv"):
        shutil.copy(path, folder)
    return folder


def test_the_committed_report_is_what_the_committed_tables_and_conclusions_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "draw", lambda *_: None)
    assert main(["--from-csv", "--processes", "1", "--out", str(copied_tables(tmp_path))]) == ExitCode.OK
    assert (tmp_path / "REPORT.md").read_text() == (COMMITTED / "REPORT.md").read_text(), (
        "write it anew: fastserve figures --from-csv"
    )


def test_results_that_contradict_a_sentence_fail_the_command_and_leave_the_conclusions_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "draw", lambda *_: None)
    file = copied_tables(tmp_path) / "v1-09-overall.csv"
    header, *rows = csv.reader(file.read_text().splitlines())
    jct = header.index("jct_s.mean")
    for row in rows:
        if row[:4] == ["rate, mean", "load", "1.3", "skip-join MLFQ"]:
            row[jct] = str(float(row[jct]) / 2)
    with file.open("w", newline="") as changed:
        csv.writer(changed, lineterminator="\n").writerows([header, *rows])
    assert main(["--from-csv", "--processes", "1", "--out", str(tmp_path)]) == ExitCode.FAILED
    told = capsys.readouterr().err.splitlines()
    assert any(
        line.startswith(
            "conclusions.md: '**By how much?** With heavy-tailed lengths in bursts (GPT-175B) the papers' policy"
        )
        and line.endswith("states 2.9x at load 1.3 for zipf-jct-most; it is 5.8x at load 1.3")
        for line in told
    )
    assert (tmp_path / "REPORT.md").read_text().startswith(f"{TITLE}\n\n{CONTRADICTED}\n\n## Tables\n")


def test_pictures_are_of_one_kind_and_the_committed_folder_stays_small() -> None:
    assert {path.suffix for path in COMMITTED.iterdir()} == {".csv", ".md", ".svg"}
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < 8_000_000
