"""`fastserve bench` and `fastserve top` against a gateway that speaks real gRPC."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fastserve
from tests.fakes.fake_gateway_for_client import PREEMPTIONS_PER_JOB, VOCABULARY_SIZE, FakeGatewayForClient, serving


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_trace(folder: Path, *jobs: Mapping[str, object]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    return path


async def test_a_trace_is_run_and_every_figure_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(
        tmp_path,
        {"arrival_s": 0.0, "prompt_tokens": 3, "output_tokens": 2},
        {"arrival_s": 0.1, "prompt_tokens": 9, "output_tokens": 5, "id": "second", "prompt": "two words"},
        {"arrival_s": 0.2, "output_tokens": 1, "prompt_token_ids": [7, 8]},
    )
    out = tmp_path / "out"
    async with serving(FakeGatewayForClient()) as gateway:
        await fastserve("generate", "before", "--server", gateway.address)
        code = await fastserve("bench", "--server", gateway.address, "--trace", str(trace), "--out", str(out))
    result = json.loads((out / "result.json").read_text())
    assert (code, result["jobs"], result["failed"]) == (0, 3, 0)
    assert (result["config"]["policy"], result["config"]["kv_policy"]) == ("skip-join-mlfq", "proactive")
    assert 0.2 <= result["duration_s"] < 5
    assert result["output_tokens_per_s"] == pytest.approx(8 / result["duration_s"], rel=1e-3)
    assert result["jct_s"]["max"] >= result["ttft_s"]["p50"] > 0
    assert result["scheduler"]["preemptions"] == 3 * PREEMPTIONS_PER_JOB
    assert result["scheduler"]["iterations"] == 8
    assert result["kv"] == {"offloaded_bytes": 3 * 4096, "uploaded_bytes": 0, "recomputed_tokens": 0, "stall_s": 1.5}
    jobs = lines_of(out / "jobs.jsonl")
    assert [(job["id"], job["prompt_tokens"], job["output_tokens"], job["preemptions"]) for job in jobs] == [
        ("0", 3, 2, 2),
        ("second", 2, 5, 2),
        ("2", 2, 1, 2),
    ]
    assert all(job["arrival_s"] <= job["first_token_s"] <= job["last_token_s"] for job in jobs)
    assert jobs[2]["worst_gap_s"] is None
    assert lines_of(out / "status.jsonl")[0]["groups"][0]["device_blocks_total"] == 64
    assert "3 jobs, 0 failed" in capsys.readouterr().out
    _, random_ids, text, ids = gateway.requests
    assert len(random_ids.token_ids.ids) == 3
    assert max(random_ids.token_ids.ids) < VOCABULARY_SIZE
    assert (text.text, list(ids.token_ids.ids)) == ("two words", [7, 8])
    assert all(request.sampling.ignore_eos for request in (random_ids, text, ids))
    assert [request.request_id for request in (random_ids, text, ids)] == ["", "", ""]


async def test_time_scale_0_sends_everything_at_once(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path, *({"arrival_s": second * 60.0, "prompt_tokens": 1, "output_tokens": 1} for second in range(5))
    )
    async with serving(FakeGatewayForClient()) as gateway:
        await fastserve(
            "bench", "--server", gateway.address, "--trace", str(trace), "--time-scale", "0", "--out", str(tmp_path)
        )
    assert [job["arrival_s"] for job in lines_of(tmp_path / "jobs.jsonl")] == [0.0] * 5
    assert json.loads((tmp_path / "result.json").read_text())["duration_s"] < 10


async def test_the_server_is_asked_for_its_status_as_seldom_as_the_caller_says(tmp_path: Path) -> None:
    flags = ("--jobs", "1", "--time-scale", "0", "--out", str(tmp_path))
    async with serving(FakeGatewayForClient()) as gateway:
        await fastserve("bench", "--server", gateway.address, *flags)
        by_default = gateway.watched_every_s.copy()
        await fastserve("bench", "--server", gateway.address, *flags, "--sample-interval", "7.5")
    assert (by_default[0], gateway.watched_every_s[len(by_default)]) == (0.25, 7.5)


async def test_failed_jobs_are_counted_named_and_left_out(tmp_path: Path) -> None:
    job = {"arrival_s": 0.0, "prompt_tokens": 1, "output_tokens": 2}
    trace = write_trace(tmp_path, job, *({**job, "prompt": prompt} for prompt in ("full", "break", "abort")))
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("bench", "--server", gateway.address, "--trace", str(trace), "--out", str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (code, result["jobs"], result["failed"]) == (0, 4, 3)
    errors = [job["error"] for job in lines_of(tmp_path / "jobs.jsonl")]
    assert errors[0] is None
    assert errors[1].startswith("RESOURCE_EXHAUSTED")
    assert "can't be reached" in errors[2]
    assert errors[3] == "aborted by the server"


async def test_when_every_job_fails_bench_fails_and_the_files_are_whole(tmp_path: Path) -> None:
    async with serving(FakeGatewayForClient(most_jobs=0)) as gateway:
        code = await fastserve(
            "bench", "--server", gateway.address, "--jobs", "3", "--rate", "100", "--out", str(tmp_path)
        )
    assert code == 1
    assert json.loads((tmp_path / "result.json").read_text())["jct_s"]["mean"] is None


async def test_a_thousand_concurrent_streams_all_end_well(tmp_path: Path) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve(
            "bench", "--server", gateway.address, "--jobs", "1000", "--rate", "100", "--theta", "1.2",
            "--max-output-tokens", "8", "--time-scale", "0", "--out", str(tmp_path),
        )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert (code, result["jobs"], result["failed"]) == (0, 1000, 0)


@pytest.mark.parametrize(
    "argv",
    [
        ("--trace", "no-such-file.jsonl"),
        ("--trace", "x", "--jobs", "3"),
        ("--jobs", "0"),
        ("--rate", "nan"),
        ("--cv", "-1"),
        ("--sample-interval", "0.04"),
        ("--sample-interval", "60.1"),
    ],
)
async def test_a_bad_workload_or_interval_ends_with_2_and_one_line(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await fastserve("bench", *argv) == 2
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_server_that_cannot_be_reached_ends_with_3_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await fastserve("bench", "--server", "127.0.0.1:1", "--out", str(tmp_path)) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("place", ["file", "file/below"])
async def test_a_place_that_cannot_be_written_is_told_before_the_run(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("bench", "--server", gateway.address, "--jobs", "1", "--out", str(tmp_path / place))
    told = capsys.readouterr().err
    assert (code, told.count("\n"), gateway.requests) == (2, 1, [])
    assert told.startswith(f"fastserve bench: --out {tmp_path / place} can't be written: ")


async def test_files_that_cannot_be_written_after_all_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.jsonl").mkdir()
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("bench", "--server", gateway.address, "--jobs", "1", "--out", str(tmp_path))
    assert code == 2
    assert f"--out {tmp_path} can't be written: " in capsys.readouterr().err


async def test_a_server_that_is_gone_at_the_end_costs_its_last_counters_and_not_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"arrival_s": 0.0, "prompt_tokens": 1, "output_tokens": 3}
    trace = write_trace(tmp_path, job, job)
    async with serving(FakeGatewayForClient(lost_after=2)) as gateway:
        code = await fastserve("bench", "--server", gateway.address, "--trace", str(trace), "--out", str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (code, result["jobs"], result["failed"]) == (0, 2, 0)
    assert [line["output_tokens"] for line in lines_of(tmp_path / "jobs.jsonl")] == [3, 3]
    assert result["config"]["status_lost"].endswith("can't be reached: gone")
    assert "counters are those of its last status" in capsys.readouterr().err


async def test_top_prints_one_frame_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("top", "--once", "--interval", "0.05", "--server", gateway.address)
    frame = capsys.readouterr().out
    assert code == 0
    for text in (
        "skip-join-mlfq + proactive",
        "level",
        "device KV",
        "16/64 blocks",
        "tokens/s",
        "promotions",
        "up to 48 jobs",
    ):
        assert text in frame


@pytest.mark.parametrize("name", ["a[/b]", "[red]a", "a\\[", "[/]"])
async def test_top_shows_a_name_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient(name=name)) as gateway:
        assert await fastserve("top", "--once", "--interval", "0.05", "--server", gateway.address) == 0
    frame = capsys.readouterr().out
    assert f"{name}   skip-join-mlfq" in frame
    assert f"group 0 on cpu of {name}" in frame


async def test_top_ends_with_the_stream(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        assert await fastserve("top", "--interval", "0.05", "--server", gateway.address) == 0
    assert "group 0 on cpu" in capsys.readouterr().out


async def test_top_of_a_server_that_cannot_be_reached_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert await fastserve("top", "--once", "--server", "127.0.0.1:1") == 3
    assert capsys.readouterr().err.count("\n") == 1
