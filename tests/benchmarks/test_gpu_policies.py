"""Policies on a device: which runs are made, and what is simulated and told beside them."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import gpu_policies
from benchmarks.goals_and_tables import section
from benchmarks.gpu_policies import PLACES, Content, main, measure, scenarios, tables
from benchmarks.servers import Result
from benchmarks.simulated_runs import ServedBy, simulated_figures
from services.domain.copying import LinkSpeed
from services.runtime.profile_file import Profile, profile_of
from services.workloads.workload import TraceJob
from tests.builders.cost_profiles import flat_cost

WHERE = PLACES["tiny"]
FIGURES = ("jct_s", "ttft_s", "per_output_token_s", "worst_gap_s")
SPAN_S = 8.0
SLOWDOWN = 1.2


def live(mean_s: float) -> Result:
    """A run's figures."""
    statistics = {"mean": mean_s, "p50": mean_s, "p95": 2 * mean_s, "p99": 3 * mean_s}
    return {
        "jobs": 50,
        "failed": 0,
        "duration_s": 60.0,
        "output_tokens_per_s": 100.0,
        **dict.fromkeys(FIGURES, statistics),
        "scheduler": {"busy_s": 55.0, "iterations": 550},
        "kv": {"offloaded_bytes": 2e9, "uploaded_bytes": 1e9},
    }


@contextmanager
def without_servers() -> Iterator[list[str]]:
    """The names of the runs, which take no server here. Iterations take 0.1 s."""
    made: list[str] = []

    async def profiled(*_: Any) -> Profile:
        link = LinkSpeed(1e9, 1e-5, True)
        return Profile(flat_cost(0.1), {"kind": "test"}, kv_bytes_per_token=1024, link=link, max_model_len=4096)

    async def run(_: Any, name: str, *__: Any) -> Result:
        made.append(name)
        return live(float(len(made)))

    with pytest.MonkeyPatch.context() as only_here:
        only_here.setattr(gpu_policies, "CAPACITY_JOBS", 120)
        only_here.setattr(gpu_policies, "random_model", lambda *_: Path("/no/model"))
        only_here.setattr(gpu_policies, "_measured_profile", profiled)
        only_here.setattr(gpu_policies, "_run", run)
        yield made


@pytest.fixture
def runs() -> Iterator[list[str]]:
    with without_servers() as made:
        yield made


def measured(tmp_path: Path, before: Content | None = None) -> Content:
    written: list[str] = []
    content = asyncio.run(measure(WHERE, tmp_path, SPAN_S, before, lambda each: written.append(json.dumps(each))))
    assert not written or json.loads(written[-1]) == content
    return content


class Measurement(NamedTuple):
    """What was measured, and the names of the runs in their order."""

    content: Content
    runs: list[str]


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """A measurement from nothing to its end. It is nobody's to change: take a `deepcopy`."""
    with without_servers() as made:
        return Measurement(measured(tmp_path_factory.mktemp("whole")), made)


def test_every_scenario_is_served_under_fcfs_and_both_other_policies(measured_once: Measurement) -> None:
    content, runs = measured_once
    assert [told["name"] for told in content["scenarios"]] == [one.name for one in scenarios(WHERE)]
    for told in content["scenarios"]:
        assert [run["pair"][0] for run in told["runs"]] == ["fcfs", "gittins", "skip-join-mlfq"]
        assert len(told["trace"]) == told["jobs"] >= 50
        rate = told["jobs"] / told["span_s"]
        assert rate == pytest.approx(told["load"] * told["fcfs_capacity_per_s"], rel=0.1)
    tails, chats = content["scenarios"]
    longest = max(prompt + output for _, prompt, output in tails["trace"])
    assert tails["device_tokens"] == max(tails["peak_need_tokens"] // 4, longest + 16) // 16 * 16
    assert chats["device_tokens"] == WHERE.device_tokens
    assert len(set(runs)) == 6


def test_what_a_broken_off_measurement_lacks_is_measured_with_its_jobs_and_its_profile(
    measured_once: Measurement, tmp_path: Path, runs: list[str]
) -> None:
    before = deepcopy(measured_once.content)
    traces = [told["trace"] for told in before["scenarios"]]
    before["scenarios"][0]["runs"][1]["live"] = {"error": "the server ended"}
    del before["scenarios"][1]["runs"][2]
    content = measured(tmp_path, before)
    assert runs == [measured_once.runs[1], measured_once.runs[5]]
    assert [told["trace"] for told in content["scenarios"]] == traces
    assert [len(told["runs"]) for told in content["scenarios"]] == [3, 3]


def as_if_slower(content: Content) -> Content:
    """The live workers iterated as simulated ones do whose iterations take SLOWDOWN times as long."""
    profile = profile_of(content["profile"])
    for told in content["scenarios"]:
        jobs = [TraceJob(str(number), *job) for number, job in enumerate(told["trace"])]
        by = ServedBy(told["max_batch"], told["device_tokens"], told["host_tokens"], SLOWDOWN)
        for run in told["runs"]:
            figures = simulated_figures(by, profile, tuple(run["pair"]), jobs)
            run["live"]["scheduler"] = {name: figures[name] for name in ("busy_s", "iterations")}
    return content


class SimulatedFile(NamedTuple):
    """What became of a file, and what was printed."""

    content: Content
    printed: str


@pytest.fixture(scope="module")
def simulated(measured_once: Measurement, tmp_path_factory: pytest.TempPathFactory) -> SimulatedFile:
    content = as_if_slower(deepcopy(measured_once.content))
    file = tmp_path_factory.mktemp("measured") / "policies.json"
    file.write_text(json.dumps({"hardware": {"name": "a card"}, **content}))
    with redirect_stdout(StringIO()) as printed:
        assert main(["--simulate", str(file)]) == 0
    return SimulatedFile(json.loads(file.read_text()), printed.getvalue())


def test_simulated_figures_stand_beside_the_live_ones(simulated: SimulatedFile) -> None:
    for table in tables(simulated.content):
        for pair in ("gittins + proactive", "skip-join-mlfq + proactive"):
            for how in ("live", "simulated"):
                assert f"| {pair} | {how} |" in section(table)
    for told in simulated.content["scenarios"]:
        assert told["slowdown"] == pytest.approx(SLOWDOWN), "found on the other scenario"


def test_a_file_is_simulated_in_place(simulated: SimulatedFile) -> None:
    assert simulated.content["hardware"] == {"name": "a card"}
    assert all("simulated" in run for told in simulated.content["scenarios"] for run in told["runs"])
    assert "off on average" in simulated.printed


WRONG_FILES = {
    "no JSON": ("no JSON", "Expecting value"),
    "another program's": ('{"measured": {}}', "is not a file that this program wrote"),
    "a list": ("[]", "is not a file that this program wrote"),
}


@pytest.mark.parametrize("wrong", WRONG_FILES)
@pytest.mark.parametrize("flags", [("--simulate",), ("--model", "tiny", "--out")])
def test_a_file_that_is_not_its_own_is_told_in_a_line_and_stays_as_it_is(
    flags: tuple[str, ...], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, told = WRONG_FILES[wrong]
    file = tmp_path / "policies.json"
    file.write_text(text)
    assert main([*flags, str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{flags[-1]}: " in line
    assert told in line
    assert file.read_text() == text


def test_a_file_that_is_not_there_can_not_be_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--simulate", str(tmp_path / "missing.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_runs_of_two_models_do_not_come_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policies.json"
    file.write_text('{"model": "8B", "profile": {}, "scenarios": [], "hardware": {}}')
    assert main(["--model", "tiny", "--out", str(file)]) == 2
    assert "is of model" in capsys.readouterr().err
