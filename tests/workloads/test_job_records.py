"""What becomes of a trace run's records."""

import json
from pathlib import Path

import pytest

from services.domain.server_status import ServerCounters, ServerStatus
from services.workloads.job_records import JobRecord, distribution, percentile, result, write_result_files

DISTRIBUTIONS = ("jct_s", "ttft_s", "inter_token_s", "per_output_token_s", "worst_gap_s")


def ended(job_id: str, arrival_s: float, token_times_s: list[float]) -> JobRecord:
    record = JobRecord(job_id, arrival_s, prompt_tokens=5, finish_reason="length")
    for time_s in token_times_s:
        record.add_tokens(1, time_s)
    return record


def test_percentiles_are_interpolated_between_ranks() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([1.0], 0.99) == 1.0
    assert distribution([4.0, 1.0]) == {"mean": 2.5, "p50": 2.5, "p95": 3.85, "p99": 3.97, "max": 4.0}


def test_a_distribution_of_nothing_is_null() -> None:
    assert distribution([]) == {"mean": None, "p50": None, "p95": None, "p99": None, "max": None}


def test_times_count_from_the_scheduled_arrival_and_failed_jobs_are_left_out() -> None:
    failed = ended("2", 0.0, [50.0])
    failed.error = "RESOURCE_EXHAUSTED: full"
    records = [ended("0", 1.0, [2.0, 3.0, 6.0]), ended("1", 2.0, [4.0]), failed]
    content = result({"theta": 1}, records, ServerCounters(preemptions=3, offloaded_bytes=10, stall_s=0.25))
    assert (content["config"], content["jobs"], content["failed"]) == ({"theta": 1}, 3, 1)
    assert (content["duration_s"], content["output_tokens_per_s"]) == (6.0, 0.667)
    means = {name: distributed["mean"] for name in DISTRIBUTIONS if isinstance(distributed := content[name], dict)}
    assert means == pytest.approx(
        {
            "jct_s": (5 + 2) / 2,
            "ttft_s": (1 + 2) / 2,
            "inter_token_s": (1 + 3) / 2,
            "per_output_token_s": (5 / 3 + 2) / 2,
            "worst_gap_s": 3.0,
        }
    )
    assert content["kv"] == {"offloaded_bytes": 10, "uploaded_bytes": 0, "recomputed_tokens": 0, "stall_s": 0.25}
    assert isinstance(content["scheduler"], dict)
    assert content["scheduler"]["preemptions"] == 3


def test_tokens_that_come_in_one_message_have_no_gap_between_them() -> None:
    record = JobRecord("0", 0.0, 1)
    record.add_tokens(2, 1.0)
    record.add_tokens(3, 2.5)
    record.add_tokens(0, 9.0)
    assert list(record.gaps_s) == [0.0, 1.5, 0.0, 0.0]
    assert (record.output_tokens, record.first_token_s, record.last_token_s) == (5, 1.0, 2.5)


def test_counters_of_a_restarted_scheduler_count_from_zero() -> None:
    def snapshot(uptime_s: float, counters: ServerCounters) -> ServerStatus:
        return ServerStatus("m", "fcfs", "defer", (), counters, uptime_s, 1)

    before = snapshot(20.0, ServerCounters(preemptions=9, iterations=100, jobs_admitted=5))
    more = ServerCounters(preemptions=12, iterations=130, jobs_admitted=7)
    less = ServerCounters(preemptions=4, iterations=30, jobs_admitted=2)
    for uptime_s, counters, preemptions in (
        (50.0, more, 3),  # the same life
        (49.0, more, 3),  # the first word was late
        (50.0, less, 4),
        (19.0, more, 12),  # a second life that has done more than the first
        (25.0, more, 12),  # and is older
    ):
        assert snapshot(uptime_s, counters).counters_since(before, 30.0).preemptions == preemptions, uptime_s


def test_both_files_have_the_names_of_the_contract(tmp_path: Path) -> None:
    records = [ended("a", 0.5, [1.0, 1.25]), JobRecord("b", 0.75, 9, error="UNAVAILABLE: gone")]
    write_result_files(tmp_path / "run", result({}, records, ServerCounters()), records)
    lines = [json.loads(line) for line in (tmp_path / "run" / "jobs.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "id": "a",
        "arrival_s": 0.5,
        "first_token_s": 1.0,
        "last_token_s": 1.25,
        "prompt_tokens": 5,
        "output_tokens": 2,
        "finish_reason": "length",
        "preemptions": 0,
        "worst_gap_s": 0.25,
        "error": None,
    }
    assert lines[1]["error"] == "UNAVAILABLE: gone"
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(written) == [
        "config", "jobs", "failed", "duration_s", "output_tokens_per_s", *DISTRIBUTIONS, "scheduler", "kv",
    ]  # fmt: skip
    for name in DISTRIBUTIONS:
        assert list(written[name]) == ["mean", "p50", "p95", "p99", "max"]
    assert {"preemptions", "promotions", "demotions", "iterations"} <= set(written["scheduler"])
    assert set(written["kv"]) == {"offloaded_bytes", "uploaded_bytes", "recomputed_tokens", "stall_s"}
