"""Tables and pictures of two trace runs."""

import io
import json
from pathlib import Path

from rich.console import Console

from services.cli.bench.comparison import counter_table, gain, headline, latency_table
from services.cli.bench.pictures import draw, main
from services.domain.server_status import GroupStatus, LevelStatus, PoolUsage, ServerCounters, ServerStatus
from services.workloads.job_records import JobRecord, result, write_lines, write_result_files

NAMES = ("FCFS", "FastServe")


def records(slowness: float) -> list[JobRecord]:
    made = []
    for number in range(20):
        record = JobRecord(str(number), number / 10, 5, finish_reason="length")
        for token in range(3):
            record.add_tokens(1, number / 10 + slowness * (token + 1))
        made.append(record)
    return [*made, JobRecord("failed", 0.0, 5, error="gone")]


def write_run(folder: Path, slowness: float, level_count: int) -> None:
    levels = tuple(LevelStatus(level, 0.01 * 2**level, 1, 2, 0) for level in range(level_count))
    group = GroupStatus(0, True, levels, PoolUsage(64, 16, 256, 200), 16, "cpu", 1)
    snapshot = ServerStatus("m", "p", "k", (group,), ServerCounters(), 1.0, 100)
    made = records(slowness)
    write_result_files(folder, result({}, made, ServerCounters(preemptions=4)), made)
    write_lines(folder / "status.jsonl", [json.dumps(snapshot.as_json(time_s)) for time_s in (0.0, 0.5, 1.0)])


def test_every_picture_is_drawn_from_the_files_of_two_trace_runs(tmp_path: Path) -> None:
    for name, slowness, level_count in (("a", 2.0, 1), ("b", 0.5, 5)):
        write_run(tmp_path / name, slowness, level_count)
    paths = draw({"FCFS": tmp_path / "a", "FastServe": tmp_path / "b"}, tmp_path)
    assert [path.name for path in paths] == ["latency.png", "levels.png", "kv.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in paths)


def test_pictures_need_labels_and_folders() -> None:
    assert main(["out"]) == 2
    assert main(["out", "no-label"]) == 2


def test_the_tables_show_every_distribution_and_counter_of_both() -> None:
    results = (
        result({}, records(2.0), ServerCounters(stall_s=0.25)),
        result({}, records(0.5), ServerCounters(preemptions=7)),
    )
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(latency_table(NAMES, results))
    console.print(counter_table(NAMES, results))
    text = console.export_text()
    for words in (
        "job completion: FCFS",
        "worst gap of a job: FastServe",
        "4.00x",
        "preemptions",
        "GB uploaded",
        "0.25 s",
    ):
        assert words in text


def test_a_clear_win_is_said_and_so_is_none() -> None:
    slow, fast = (result({}, records(slowness), ServerCounters()) for slowness in (2.0, 0.5))
    won, sentence = headline((slow, fast))
    assert won
    assert sentence.startswith(
        "FastServe wins: on average jobs complete 4.0x sooner, their first token comes 4.0x sooner"
    )
    won, sentence = headline((fast, slow))
    assert not won
    assert sentence.startswith("FastServe does NOT win clearly here")


def test_a_gain_over_nothing_is_none() -> None:
    assert gain(None, 1.0) is None
    assert gain(1.0, 0.0) is None
    assert gain(3.0, 1.5) == 2.0
