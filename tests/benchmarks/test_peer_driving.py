"""How jobs are driven through another engine, how its environment is told, and what the command takes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.peer_engines import environments
from benchmarks.peer_engines.driving import Clock, TimedJob, WrongLengthError, drive, trace_figures
from benchmarks.peer_engines.environments import PEERS, Environment, install, installed, reason
from benchmarks.peers import main
from benchmarks.settings import BenchError

STEP_S = 0.5


class VirtualClock(Clock):
    """Time passes only where somebody waits or works."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def wait(self, seconds: float) -> None:
        self.time_s += seconds


class FakePeerEngine:
    """Makes a token of every job in each step, which takes STEP_S; `extra` tokens too many at the end."""

    def __init__(self, clock: VirtualClock, extra: int = 0) -> None:
        self._clock = clock
        self._extra = extra
        self._missing: dict[int, int] = {}
        self.added: list[int] = []

    def add(self, number: int, prompt: Sequence[int], output_tokens: int, watched: bool) -> None:
        self.added.append(number)
        self._missing[number] = output_tokens

    def step(self, limit_s: float) -> list[tuple[int, Sequence[int]]]:
        self._clock.wait(STEP_S)
        made: list[tuple[int, Sequence[int]]] = []
        for number, missing in list(self._missing.items()):
            last = missing == 1
            made.append((number, [7] * (1 + self._extra * last)))
            self._missing[number] -= 1
            if last:
                del self._missing[number]
        return made


def job(arrival_s: float, output_tokens: int) -> TimedJob:
    return TimedJob(arrival_s, (1, 2, 3), output_tokens)


def test_jobs_join_at_the_step_after_their_arrival_and_are_timed_from_it() -> None:
    clock = VirtualClock()
    engine = FakePeerEngine(clock)
    jobs = [job(0.0, 3), job(0.6, 1), job(10.0, 2)]
    outputs = drive(engine, jobs, clock, first_number=5)
    assert engine.added == [5, 6, 7]
    assert [one.times_s for one in outputs] == [[0.5, 1.0, 1.5], [1.5], [10.5, 11.0]]
    figures = trace_figures(jobs, outputs)
    assert (figures["duration_s"], figures["output_tokens"]) == (11.0, 6)
    assert figures["mean_jct_s"] == pytest.approx((1.5 + 0.9 + 1.0) / 3)


def test_an_engine_that_makes_more_than_was_asked_is_not_measured() -> None:
    clock = VirtualClock()
    with pytest.raises(WrongLengthError, match="a job of 2 tokens made 3"):
        drive(FakePeerEngine(clock, extra=1), [job(0.0, 2)], clock, first_number=0)


def test_a_reason_is_the_line_that_tells_of_the_error() -> None:
    log = "Using Python 3.11\n  × No solution found when resolving dependencies:\n  because torch\nhint: try again\n"
    assert reason(log) == "× No solution found when resolving dependencies: because torch"
    assert reason("a\nerror: no space left\nb\n") == "no space left"
    assert reason("first\nlast\n\n") == "last"
    assert reason('CMake Error: "/home/a/b-1.2/CMakeLists.txt" is old') == 'CMake Error: "CMakeLists.txt" is old'
    assert reason("CMake Error at /a/CMakeLists.txt:2 (project):\n  No C++ compiler.\n\nSee more\n") == (
        "CMake Error at CMakeLists.txt:2 (project): No C++ compiler."
    )
    assert reason("it ended with an error:\n") == "it ended with an error:"
    assert reason("") == "it said nothing"


def test_an_environment_is_made_anew_when_its_requirements_change() -> None:
    assert Environment("a", "A", ("x==1",)).mark() == Environment("a", "B", ("x==1",)).mark()
    assert Environment("a", "A", ("x==1",)).mark() != Environment("a", "A", ("x==2",)).mark()

    assert Environment("a", "A", (), built_from=("x==1",)).mark() != Environment("a", "A", ()).mark()
    assert (
        Environment("a", "A", (), built_from=("x", "-O2")).mark() != Environment("a", "A", (), built_from=("x",)).mark()
    )


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Stands for uv: makes the folder of an environment, and installs nothing."""
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "peers")
    script = tmp_path / "uv"
    script.write_text('#!/bin/sh\ntest "$1" = pip || mkdir "$4"\n')
    script.chmod(0o755)
    return str(script)


def build_once(environment: Environment, folder: Path) -> None:
    """Fails where a build has been before, as CMake does if that was in another folder."""
    cache = environment.folder / "cache"
    if cache.exists():
        raise BenchError("the cache is of another folder")
    cache.write_text(str(environment.folder))


def test_what_an_unfinished_install_left_behind_is_no_part_of_the_next_one(uv: str) -> None:
    environment = Environment("a", "A", ("x==1",), build=build_once)
    environment.folder.mkdir(parents=True)
    (environment.folder / "cache").write_text("/before/the/checkout/moved")
    install(environment, uv)
    assert installed(environment)
    assert (environment.folder / "cache").read_text() == str(environment.folder)


def test_a_finished_environment_is_kept_until_its_versions_change(uv: str) -> None:
    install(Environment("a", "A", ("x==1",)), uv)
    kept = Environment("a", "A", ("x==1",)).folder / "kept"
    kept.touch()
    install(Environment("a", "A", ("x==1",)), "no uv is asked")
    assert kept.exists()
    install(Environment("a", "A", ("x==2",)), uv)
    assert not kept.exists()
    assert installed(Environment("a", "A", ("x==2",)))


def test_an_environment_whose_build_fails_is_not_there(uv: str) -> None:
    def fail(environment: Environment, folder: Path) -> None:
        raise BenchError("no compiler")

    environment = Environment("a", "A", ("x==1",), build=fail)
    with pytest.raises(BenchError, match="no compiler"):
        install(environment, uv)
    assert not installed(environment)


def test_peers_have_environments_of_their_own_with_fixed_versions() -> None:
    folders = {one.folder for one in PEERS}
    assert len(folders) == 4
    assert all(folder.parts[-3:-1] == ("build", "peers") for folder in folders)
    assert all("==" in one.requirements[0] and all("==" in name for name in one.built_from[:1]) for one in PEERS)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--peers", "openvino,tgi"], "--peers: there is no 'tgi'"),
        (["--models", "L"], "--models: there is no 'L'"),
        (["--measures", "speed"], "--measures: there is no 'speed'"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--minutes", "0"], "--minutes is 0"),
    ],
)
def test_a_flag_that_names_nothing_is_refused(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert says in capsys.readouterr().err
