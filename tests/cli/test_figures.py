"""The figures: declared as the papers' evaluation has them, run, drawn and written."""

import fcntl
import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from evaluation import command, execution
from evaluation import finished as finished_runs
from evaluation.catalogue import FIGURES
from evaluation.command import chosen, evaluate, main, write
from evaluation.drawing import GAPS_SUFFIX, apart, caption_of, gaps_of, gaps_owner, split_of
from evaluation.evaluation import Evaluation
from evaluation.finished import Finished, code_digest, sources
from evaluation.measures import NUMBERS
from evaluation.metrics import GAPS, JCT
from evaluation.paper_n26 import GOODPUT, MEAN_LATENCY, PEAK, SWAPS, TAIL_LATENCY
from evaluation.paper_v1 import OPT_13B, STATIC_LOADS
from evaluation.simulating import server_setup
from evaluation.systems import COLOURS, FASTSERVE, FCFS, REACTIVE, SRPT
from evaluation.tables import HEADER, table
from evaluation.values import FULL, MAIN, QUICK, Axis, Figure, Lengths, Panel, Points, Run, Scale, Traffic
from services.experiments.named_profiles import PROFILES
from services.runtime.command_line import CommandError, ExitCode
from services.simulator.simulation import StuckError
from services.workloads.workload import WorkloadKind
from tests.cli.made_evaluations import made

CODE = "0123456789abcdef"
TINY = Scale("quick", jobs=12, seeds=(0, 1), most_points=2, full=False)
SHORT = Traffic(Lengths(WorkloadKind.ZIPF, theta=1.0, max_prompt_tokens=64, max_output_tokens=32), cv=2.0)
FIGURE = Figure(
    name="tiny",
    shows="no paper's",
    title="A figure for tests",
    caption="OPT-13B.",
    panels=(
        Panel("rate", Axis.LOAD, Points((0.5, 0.9, 1.2), (2.0,)), OPT_13B, SHORT, (FCFS, FASTSERVE, SRPT), JCT, 1.0),
        Panel("bursts", Axis.CV, Points((1.0, 4.0)), OPT_13B, SHORT, (FCFS, FASTSERVE, SRPT), JCT),
    ),
)
ASKED_FOR = (
    *("v1 Fig. 9", "v1 Fig. 10", "v1 Fig. 11", "v1 Fig. 12"),
    *(f"N26 Fig. {number}" for number in (1, 8, 11, 12, 13, 14, 15, 16, 17, 18)),
)


def quiet(title: str, done: int, total: int) -> None:
    """A progress that shows nothing."""
    assert 0 <= done <= total, title


def evaluated(folder: Path, processes: int = 1) -> Evaluation:
    return evaluate((FIGURE,), TINY, Finished(folder, CODE), processes, quiet)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return evaluated(tmp_path_factory.mktemp("finished"))


def test_a_figure_writes_its_pictures_its_table_and_the_report(evaluation: Evaluation, tmp_path: Path) -> None:
    write(evaluation, tmp_path, 1, quiet)
    names = {f"tiny{suffix}.{kind}" for suffix in ("", GAPS_SUFFIX) for kind in ("svg", "png")}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "tiny.csv", "REPORT.md"}


def test_the_same_seeds_give_the_same_bytes(evaluation: Evaluation, tmp_path: Path) -> None:
    for folder, each in (("one", evaluation), ("other", evaluated(tmp_path / "finished"))):
        write(each, tmp_path / folder, 1, quiet)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert b"<dc:date>" not in files["tiny.svg"]


def test_more_processes_change_no_number(evaluation: Evaluation, tmp_path: Path) -> None:
    assert evaluated(tmp_path, processes=2).measured == evaluation.measured


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
    evaluate((FIGURE,), TINY, Finished(tmp_path, CODE), 1, lambda _, done, total: told.append((done, total)))
    jobs = TINY.jobs * len(set(FIGURE.runs(TINY)))
    assert told[-1] == (jobs, jobs)


def test_other_code_and_another_profile_run_all_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = next(FIGURE.runs(TINY))
    mine = Finished(tmp_path, CODE)
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
    Finished(tmp_path, "0" * 16)
    assert {path.name for path in tmp_path.iterdir()} == {"code-" + "0" * 16, "notes", "profiles"}


def test_what_other_code_has_finished_stays_while_it_is_at_work(evaluation: Evaluation, tmp_path: Path) -> None:
    run, measured = next(iter(evaluation.measured.items()))
    at_work = Finished(tmp_path, CODE)
    kept = at_work.kept(run)
    other = Finished(tmp_path, "0" * 16)
    kept.write(measured)
    assert kept.read() == measured
    assert other.kept(run).path.parent.is_dir()
    del at_work
    Finished(tmp_path, "1" * 16)
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
    mine = Finished(tmp_path, CODE)
    assert next(times, None) is None
    mine.kept(run).write(measured)
    Finished(tmp_path, "0" * 16)
    assert mine.kept(run).read() == measured, "its lock is that of the folder that is there"


def test_a_server_that_gets_stuck_is_told_in_one_line_with_a_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_stuck(*_: object) -> None:
        raise StuckError("99 turns were taken (at 1.5 s)\ngroup 0: plans without a result [7]")

    monkeypatch.setattr(execution, "simulate_run", get_stuck)
    with pytest.raises(CommandError, match=r"on opt-13b-a100-40gb got stuck; .*: 99 turns were taken") as told:
        evaluated(tmp_path)
    story = re.search(r"stuck; (\S+) tells", str(told.value))
    assert story is not None
    assert "group 0: plans without a result [7]" in Path(story[1]).read_text()


def test_the_code_of_a_run_is_what_a_simulation_imports_and_no_more() -> None:
    names = {"/".join(path.parts[-2:]) for path in sources()}
    assert {"machine/scheduler.py", "machine/kv_manager.py", "evaluation/measures.py"} <= names
    assert not {"evaluation/drawing.py", "evaluation/report_text.py", "evaluation/catalogue.py"} & names
    assert code_digest() == code_digest()
    assert len(code_digest()) == len(CODE)


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


def test_loads_are_multiples_of_what_fcfs_serves(evaluation: Evaluation) -> None:
    panel = FIGURE.panels[0]
    for x in TINY.of(panel.points):
        for measured in evaluation.at(panel, FASTSERVE, x):
            assert measured.load == pytest.approx(x)
            assert measured.rate_per_s == pytest.approx(x * measured.capacity_per_s)


def test_every_run_has_every_number_and_no_job_fails(evaluation: Evaluation) -> None:
    for measured in evaluation.measured.values():
        assert tuple(measured.numbers) == NUMBERS
        assert measured.numbers["jobs"] == TINY.jobs
        assert measured.numbers["failed"] == 0


def test_runs_that_are_equal_are_one_run(evaluation: Evaluation) -> None:
    declared = list(FIGURE.runs(TINY))
    assert len(evaluation.measured) == len(set(declared)) <= len(declared)
    shared = {run for panel in MEAN_LATENCY.panels for run in panel.runs(MAIN)}
    assert set(TAIL_LATENCY.runs(MAIN)) == shared == set(GOODPUT.runs(MAIN))


def test_every_figure_that_the_papers_evaluation_has_is_declared() -> None:
    shown = [figure.shows.partition(",")[0] for figure in FIGURES]
    assert [name for name in ASKED_FOR if name not in shown] == []
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


def test_every_figure_has_the_oracle_and_the_baseline() -> None:
    for figure in FIGURES:
        for panel in figure.panels:
            assert {FCFS, FASTSERVE, SRPT} <= set(panel.systems), (figure.name, panel.title)


def test_panels_of_a_figure_have_titles_of_their_own() -> None:
    for figure in FIGURES:
        titles = [panel.title for panel in figure.panels]
        assert len(set(titles)) == len(titles), figure.name


def test_every_system_has_a_colour_of_its_own_within_a_panel() -> None:
    for figure in FIGURES:
        for panel in figure.panels:
            colours = [COLOURS[system.label] for system in panel.systems]
            assert len(set(colours)) == len(colours), (figure.name, panel.title)


def test_every_run_of_the_main_set_names_a_server_that_exists() -> None:
    for server, system in {(run.server, run.system) for figure in FIGURES for run in figure.runs(MAIN)}:
        setup = server_setup(server, system)
        assert setup.scheduler.policy is system.policy
        assert setup.kv.policy.name == system.kv_policy
        assert setup.scheduler.max_batch == server.max_batch
        assert setup.scheduler.plans_in_flight == setup.stages + 1
        assert setup.scheduler.starvation_limit_s == system.starvation_limit_s


@pytest.mark.parametrize(("scale", "jobs", "seeds"), [(QUICK, 120, 1), (MAIN, 1000, 1), (FULL, 3000, 3)])
def test_the_three_sets_have_their_jobs_and_seeds(scale: Scale, jobs: int, seeds: int) -> None:
    assert scale.jobs == jobs
    assert len(scale.seeds) == seeds


def test_a_smaller_set_keeps_both_ends_of_an_axis() -> None:
    points = Points((0.3, 0.6, 0.9, 1.2), (2.0,))
    two = Scale("two", jobs=1, seeds=(0,), most_points=2, full=False)
    assert two.of(points) == (0.3, 1.2)
    assert MAIN.of(points) == points.main
    assert FULL.of(points) == (0.3, 0.6, 0.9, 1.2, 2.0)


def test_only_systems_with_idle_slots_run_for_each_number_of_them() -> None:
    panel = Panel("K", Axis.IDLE_SLOTS, Points((0, 8)), OPT_13B, SHORT, (REACTIVE, FASTSERVE), JCT)
    assert len(set(panel.runs(TINY))) == len(TINY.seeds) * (1 + 2)


def test_figures_that_draw_the_same_runs_share_the_picture_of_their_gaps() -> None:
    assert gaps_owner(TAIL_LATENCY, FIGURES) is MEAN_LATENCY
    assert gaps_owner(TAIL_LATENCY, (TAIL_LATENCY,)) is TAIL_LATENCY


def test_the_picture_of_gaps_has_each_sweep_once_by_both_measures() -> None:
    panels = gaps_of(SWAPS).panels
    assert [panel.metric for panel in panels] == list(GAPS)
    assert {panel.sweep for panel in panels} == set(SWAPS.sweeps)


def test_a_jobs_time_has_a_part_for_kv_that_is_being_brought_back() -> None:
    def numbers(run: Run) -> dict[str, float]:
        return {"queue_s": 1.0, "executing_s": 2.0, "preempted_s": 7.0, "upload_s": 3.0}

    panel = SWAPS.panel("a job's time")
    split = split_of(made(MAIN, (SWAPS,), lambda run: 10.0, numbers), panel, FASTSERVE, 1.5)
    assert split == {
        "before the first iteration": 1.0,
        "in iterations": 2.0,
        "KV being brought back": 3.0,
        "waiting in between": 4.0,
    }


@pytest.mark.parametrize(
    ("fcfs", "words"), [(1.0, "no mean JCT is below its"), (0.9, "FCFS's mean JCT is up to 10.0%")]
)
def test_a_caption_says_by_how_much_the_oracle_was_beaten(fcfs: float, words: str) -> None:
    evaluation = made(MAIN, (PEAK,), lambda run: fcfs if run.system == FCFS else 1.0)
    assert words in caption_of(evaluation, PEAK)
    assert "it bounds" not in caption_of(evaluation, PEAK)


def test_load_1_is_drawn_only_where_the_sweep_comes_near_it() -> None:
    evaluation = made(MAIN, (STATIC_LOADS, MEAN_LATENCY), lambda run: 1.0)
    assert "load 1." in caption_of(evaluation, MEAN_LATENCY)
    assert "Dotted upright line" not in caption_of(evaluation, STATIC_LOADS)


def test_labels_never_overlap_and_stay_beside_the_axes() -> None:
    for fractions in ([0.1, 0.1, 0.1, 0.9], [0.97, 0.98, 0.99, 1.0], [0.5]):
        heights = apart(fractions)
        assert all(above - below > 0.06 for below, above in pairwise(heights))
        assert max(heights) <= 1.0


def test_the_command_writes_the_figures_that_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = ["--finished", str(tmp_path / "finished")]
    out = tmp_path / "out"
    assert main(["--quick", "--only", "v1-quantum", "--processes", "1", "--out", str(out), *finished]) == ExitCode.OK
    assert capsys.readouterr().out == f"written to {out}\n"
    assert {path.suffix for path in out.iterdir()} == {".png", ".svg", ".csv", ".md"}
    assert "`make figures QUICK=1`" in (out / "REPORT.md").read_text()


def test_some_figures_alone_replace_no_report_of_all_unless_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "FIGURES", (FIGURE,))
    monkeypatch.setattr(command, "QUICK", TINY)
    assert main(["--quick", "--only", "tiny", "--processes", "1"]) == ExitCode.OK
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
