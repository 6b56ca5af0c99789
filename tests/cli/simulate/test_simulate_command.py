"""`fastserve simulate`: files like those of `bench`, comparisons, sweeps, seeds, and the same figures however many
processes make them.
"""

import csv
import json
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.domain.server_status import ServerCounters
from services.experiments import runs
from services.experiments.runs import record_of
from services.scheduler.scheduler_config import PolicyName
from services.simulator.outcome import JobOutcome, Simulation
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import StuckError, simulate
from services.workloads.job_records import JobRecord, result
from tests.cli.commands import fastserve

SMALL = ("--jobs", "30", "--rate", "20", "--no-load")


def _times(*times_s: float) -> "array[float]":
    return array("d", times_s)


def result_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return content


def stuck_under(*policies: PolicyName) -> Callable[..., Simulation]:
    """A simulator that gets stuck under some policies."""

    def simulate_or_not(
        setup: ServerSetup, jobs: Sequence[SimulatedJob], on_progress: Callable[[int], None] | None = None
    ) -> Simulation:
        if setup.scheduler.policy in policies:
            raise StuckError("99 turns were taken (at 1.5 s)\ngroup 0: plans without a result [7]\n  3: resident")
        return simulate(setup, jobs, on_progress)

    return simulate_or_not


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def test_one_simulation_writes_the_files_of_bench_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await fastserve("simulate", *SMALL, "--policy", "fcfs", "--kv-policy", "defer", "--out", str(tmp_path)) == 0
    content = result_of(tmp_path)
    live = result({}, [JobRecord("0", 0.0, 1, error="x")], ServerCounters())
    assert set(live) < set(content)
    assert all(list(content[part]) == list(live[part]) for part in ("jct_s", "scheduler", "kv"))  # type: ignore[call-overload]
    assert (content["jobs"], content["failed"]) == (30, 0)
    assert content["jct_s"]["max"] >= content["ttft_s"]["p50"] > 0
    config = content["config"]
    assert (config["policy"], config["kv_policy"], config["profile"]) == ("fcfs", "defer", "opt-13b-a100-40gb")
    assert config["workload"]["jobs"] == 30
    assert config["groups"][0]["kv_device_tokens"] == 15824
    jobs = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert len(jobs) == 30
    assert all(job["arrival_s"] < job["first_token_s"] <= job["last_token_s"] for job in jobs)
    assert {job["finish_reason"] for job in jobs} == {"length"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.jsonl", "result.json"]
    printed = capsys.readouterr().out
    assert re.search(r"^ *fcfs .*\n *defer", printed, re.MULTILINE)
    assert "sooner" not in printed


async def test_the_load_is_told_relative_to_what_fcfs_sustains(tmp_path: Path) -> None:
    workload = ("--jobs", "20", "--theta", "1.5", "--max-output-tokens", "32", "--processes", "1")
    for rate in ("5", "10"):
        assert await fastserve("simulate", *workload, "--rate", rate, "--out", str(tmp_path / rate)) == 0
    slow, fast = (result_of(tmp_path / rate)["config"] for rate in ("5", "10"))
    assert slow["fcfs_capacity_per_s"] == fast["fcfs_capacity_per_s"] > 0
    assert slow["load"] == pytest.approx(5 / slow["fcfs_capacity_per_s"], rel=1e-5)
    assert fast["load"] == pytest.approx(2 * slow["load"], abs=2e-6)


async def test_two_groups_have_the_load_of_half_the_rate(tmp_path: Path) -> None:
    workload = ("--jobs", "20", "--theta", "1.5", "--max-output-tokens", "32", "--processes", "1", "--rate", "10")
    assert await fastserve("simulate", *workload, "--sweep", "groups=1,2", "--out", str(tmp_path)) == 0
    folders = [tmp_path / f"groups={count}" / "gittins+proactive" / "seed-0" for count in (1, 2)]
    one, two = (result_of(folder)["config"] for folder in folders)
    assert two["load"] == pytest.approx(one["load"] / 2, abs=2e-6)
    assert len(two["groups"]) == 2


async def test_results_are_the_same_bytes_however_many_processes_make_them(tmp_path: Path) -> None:
    asked = ("--compare", "fcfs/defer,skip-join-mlfq", "--sweep", "rate=10,40", "--seed", "4,9", "--jobs", "15")
    for processes in ("1", "2"):
        out = str(tmp_path / processes)
        assert await fastserve("simulate", *asked, "--no-load", "--processes", processes, "--out", out) == 0
    alone, spread = files_of(tmp_path / "1"), files_of(tmp_path / "2")
    assert len(alone) == 2 * 2 * 2 * 2 + 1
    assert alone == spread


async def test_a_comparison_over_seeds_shows_the_spread_and_what_is_gained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path)
    code = await fastserve(
        "simulate", *SMALL, "--compare", "fcfs/defer,srpt", "--seeds", "3", "--processes", "1", "--out", out
    )
    printed = capsys.readouterr().out
    assert code == 0
    assert "mean, least and greatest of 3 seeds" in printed
    assert re.search(r"^ *fcfs .* 1\.00 ", printed, re.MULTILINE)
    assert "sooner" in printed
    with (tmp_path / "summary.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["policy"], row["seed"]) for row in rows] == [
        (policy, seed) for policy in ("fcfs", "srpt") for seed in ("0", "1", "2")
    ]
    folder = tmp_path / "srpt+proactive" / "seed-2"
    assert float(rows[5]["jct_s.mean"]) == result_of(folder)["jct_s"]["mean"]
    assert rows[0]["load"] == ""


async def test_a_trace_is_simulated_and_jobs_that_never_fit_are_counted(tmp_path: Path) -> None:
    lines = [
        {"id": "same", "arrival_s": 1.5, "prompt_tokens": 10, "output_tokens": 4},
        {"id": "same", "arrival_s": 0.0, "prompt_tokens": 10, "output_tokens": 3},
        {"id": "long", "arrival_s": 2.0, "prompt_tokens": 5000, "output_tokens": 1},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert await fastserve("simulate", "--trace", str(tmp_path / "t.jsonl"), "--out", str(tmp_path / "out")) == 0
    content = result_of(tmp_path / "out")
    assert (content["jobs"], content["failed"]) == (3, 1)
    assert content["config"]["arrivals_per_s"] == 1.0
    jobs = [json.loads(line) for line in (tmp_path / "out" / "jobs.jsonl").read_text().splitlines()]
    assert [(job["id"], job["output_tokens"]) for job in jobs] == [("same", 3), ("same", 4), ("long", 0)]


async def test_time_scale_0_sends_everything_at_once_and_tells_no_load(tmp_path: Path) -> None:
    workload = ("--jobs", "20", "--theta", "1.5", "--max-output-tokens", "32", "--processes", "1")
    assert await fastserve("simulate", *workload, "--time-scale", "0", "--out", str(tmp_path)) == 0
    content = result_of(tmp_path)
    assert content["config"]["load"] is content["config"]["arrivals_per_s"] is None
    lines = (tmp_path / "jobs.jsonl").read_text().splitlines()
    assert {json.loads(line)["arrival_s"] for line in lines} == {0.0}


async def test_time_scale_2_halves_the_load(tmp_path: Path) -> None:
    workload = ("--jobs", "20", "--theta", "1.5", "--max-output-tokens", "32", "--processes", "1", "--rate", "4")
    for scale in ("1", "2"):
        assert await fastserve("simulate", *workload, "--time-scale", scale, "--out", str(tmp_path / scale)) == 0
    whole, half = (result_of(tmp_path / scale)["config"] for scale in ("1", "2"))
    assert half["load"] == pytest.approx(whole["load"] / 2, rel=1e-5)
    assert half["arrivals_per_s"] == pytest.approx(whole["arrivals_per_s"] / 2, rel=1e-5)


async def test_when_every_job_is_refused_the_command_fails(tmp_path: Path) -> None:
    assert await fastserve("simulate", *SMALL, "--max-model-len", "2", "--theta", "0", "--out", str(tmp_path)) == 1


async def test_a_simulation_that_gets_stuck_is_told_and_the_others_are_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "simulate", stuck_under(PolicyName.FCFS))
    asked = ("--compare", "fcfs,srpt", "--seeds", "2", "--processes", "1", "--out", str(tmp_path))
    assert await fastserve("simulate", *SMALL, *asked) == 1
    printed = capsys.readouterr()
    stories = [tmp_path / "fcfs+proactive" / f"seed-{seed}" / "stuck.txt" for seed in (0, 1)]
    assert printed.err.count("\n") == 1
    assert "2 of 4 simulations got stuck" in printed.err
    assert str(stories[0]) in printed.err
    assert re.search(r"^ *fcfs( +-)+ +2 *$", printed.out, re.MULTILINE)
    assert re.search(r"^ *srpt .* 0 *$", printed.out, re.MULTILINE)
    assert all(story.read_text().endswith("\n  3: resident\n") for story in stories)
    assert [path.name for path in stories[0].parent.iterdir()] == ["stuck.txt"]
    with (tmp_path / "summary.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["policy"], row["stuck"], row["failed"]) for row in rows] == [
        *[("fcfs", "99 turns were taken (at 1.5 s)", "")] * 2,
        *[("srpt", "", "0")] * 2,
    ]


async def test_files_of_an_earlier_run_do_not_stay_beside_a_story_nor_a_story_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for policies, code, files in (
        ((), 0, ["jobs.jsonl", "result.json"]),
        ((PolicyName.GITTINS,), 1, ["stuck.txt"]),
        ((), 0, ["jobs.jsonl", "result.json"]),
    ):
        monkeypatch.setattr(runs, "simulate", stuck_under(*policies))
        assert await fastserve("simulate", *SMALL, "--processes", "1", "--out", str(tmp_path)) == code
        assert sorted(path.name for path in tmp_path.iterdir()) == files


async def test_when_the_fcfs_of_the_load_gets_stuck_it_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.simulator.fcfs_capacity.simulate", stuck_under(PolicyName.FCFS))
    assert await fastserve("simulate", "--jobs", "5", "--processes", "1", "--out", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "FCFS got stuck while its capacity was measured: 99 turns were taken" in error
    assert "group 0" in (tmp_path / "stuck.txt").read_text()


async def test_what_can_not_be_written_is_refused_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("was simulated")

    (tmp_path / "file").write_text("")
    monkeypatch.setattr("services.simulator.fcfs_capacity.simulate", never)
    out = str(tmp_path / "file" / "out")
    assert await fastserve("simulate", "--jobs", "5", "--processes", "1", "--out", out) == 2
    assert capsys.readouterr().err.startswith(f"fastserve simulate: --out {out} can't be written: ")


def test_an_outcome_is_recorded_as_a_trace_run_records_it() -> None:
    outcome = JobOutcome("7", 1.0, 5, token_times_s=_times(2.0, 2.5, 4.0), finish_reason="length", preemptions=2)
    record = record_of(outcome)
    assert (record.jct_s, record.ttft_s, record.worst_gap_s, record.output_tokens) == (3.0, 1.0, 1.5, 3)
    assert (list(record.gaps_s), record.preemptions, record.error) == ([0.5, 1.5], 2, None)
    refused = record_of(JobOutcome("8", 1.0, 5, _times(), "", error="too long"))
    assert (refused.error, refused.finish_reason, refused.first_token_s) == ("too long", None, None)
    aborted = record_of(JobOutcome("9", 1.0, 5, _times(2.0), "abort"))
    assert aborted.error == "ended as abort"


@pytest.mark.parametrize(
    "argv",
    [
        ("--profile", "nothing"),
        ("--policy", "fifo"),
        ("--kv-policy", "none"),
        ("--compare", "fifo"),
        ("--sweep", "rate=0"),
        ("--sweep", "cv=1e200,2"),
        ("--cv", "1e200"),
        ("--cv", "1e-200"),
        ("--kv-device-tokens", "1" + "0" * 30),
        ("--sweep", "max-batch=0,1"),
        ("--seed", "x"),
        ("--seeds", "0"),
        ("--seeds", "100000"),
        ("--seed", "1", "--seeds", "2"),
        ("--groups", "0"),
        ("--pp", "99"),
        ("--kv-device-tokens", "3"),
        ("--max-batch", "4096"),
        ("--processes", "0"),
        ("--jobs", "10000000"),
        ("--max-output-tokens", "10000000"),
        ("--workload", "sharegpt", "--theta", "1"),
        ("--workload", "poem"),
        ("--ratio", "2"),
        ("--trace", "x", "--workload", "zipf"),
        ("--trace", "no-such-file.jsonl"),
        ("--config", "no-such-file.toml"),
        ("--no-such-flag",),
    ],
)
async def test_bad_input_ends_with_2_and_one_line(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert await fastserve("simulate", *argv) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.out == ""


async def test_a_profile_file_and_a_table_of_settings_are_read(tmp_path: Path) -> None:
    profile = {
        "prefill": [{"tokens": 16, "seconds": 0.01}],
        "decode": [{"batch": 1, "context_tokens": 16, "seconds": 0.01}],
        "kv_bytes_per_token": 64,
        "device_kv_tokens": 4096,
        "host_kv_tokens": 4096,
        "link": {"bytes_per_s": 1e9, "latency_s": 0.0},
        "max_model_len": 1024,
        "source": {},
    }
    (tmp_path / "p.json").write_text(json.dumps(profile))
    (tmp_path / "c.toml").write_text('[simulate]\npolicy = "fcfs"\nmax_batch = 2\n')
    files = ("--profile", str(tmp_path / "p.json"), "--config", str(tmp_path / "c.toml"))
    assert await fastserve("simulate", *SMALL, *files, "--out", str(tmp_path / "out")) == 0
    config = result_of(tmp_path / "out")["config"]
    assert (config["policy"], config["server"]["max_batch"]) == ("fcfs", 2)
