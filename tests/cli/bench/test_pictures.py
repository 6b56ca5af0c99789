"""Tables and pictures of trace runs."""

import io
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from services.cli.bench.comparison import counter_table, headline, latency_table
from services.cli.bench.pictures import draw, main
from services.domain.server_status import GroupStatus, LevelStatus, PoolUsage, ServerCounters, ServerStatus
from services.workloads.job_records import JobRecord, result, write_lines, write_result_files


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
    group = GroupStatus(0, True, levels, PoolUsage(64, 16, 256, 200), 16, "cpu", 1, 16)
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


def runs_of(*slownesses: float) -> list[dict[str, object]]:
    """The results of a system's runs."""
    return [result({}, records(slowness), ServerCounters(stall_s=0.25)) for slowness in slownesses]


def shown(table: Table) -> list[str]:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def row(lines: list[str], label: str) -> str:
    """The first row of a system: that of job completion."""
    return next(line for line in lines if label in line and "(" in line and "s soon as" not in line)


def test_the_table_shows_median_and_spread_and_how_much_sooner_than_the_first_system() -> None:
    lines = shown(latency_table({"FCFS": runs_of(2.0, 2.2), "slow": runs_of(4.0, 4.2), "FastServe": runs_of(0.5, 0.6)}))
    text = "\n".join(lines)
    for words in ("job completion", "first token", "per output token", "worst gap of a job", "mean", "P99"):
        assert words in text
    assert "6.300 (6.000-6.600)" in row(lines, "FCFS")
    assert "0.51x" in row(lines, "slow")
    assert "1.650 (1.500-1.800)" in row(lines, "FastServe")
    assert "3.82x" in row(lines, "FastServe")


def test_a_difference_inside_the_spread_has_no_factor() -> None:
    lines = shown(latency_table({"FCFS": runs_of(2.0, 3.0), "FastServe": runs_of(1.0, 2.1)}))
    assert "x" not in row(lines, "FastServe")
    assert row(lines, "FastServe").count("=") == 2


def test_the_counters_are_medians() -> None:
    results = [result({}, records(0.5), ServerCounters(preemptions=count, stall_s=0.25)) for count in (7, 900, 11)]
    lines = shown(counter_table({"FCFS": runs_of(2.0), "FastServe": results}))
    assert next(line for line in lines if "preemptions" in line).split()[-2] == "11"
    text = "\n".join(lines)
    for words in ("MB uploaded", "tokens recomputed", "0.25", "failed jobs"):
        assert words in text


def test_a_win_is_said_and_so_is_none() -> None:
    slow, fast, wide = runs_of(2.0, 2.2), runs_of(0.5, 0.6), runs_of(0.5, 2.1)
    won, sentence = headline({"FCFS": slow, "FastServe": fast}, "FastServe")
    assert won
    assert sentence.startswith(
        "FastServe beats FCFS: mean job completion 3.8x sooner (1.65 s, not 6.30 s); its P99 3.8x"
    )
    won, sentence = headline({"FCFS": fast, "FastServe": slow}, "FastServe")
    assert not won
    assert sentence.startswith("FastServe does NOT beat FCFS here: mean job completion 3.8x LATER (6.30 s, not 1.65 s)")
    won, sentence = headline({"FCFS": slow, "FastServe": wide}, "FastServe")
    assert not won
    assert "mean job completion no different (3.90 s and 6.30 s, within the spread of runs)" in sentence


def test_a_later_tail_is_no_win() -> None:
    before = [{**one, "jct_s": {"mean": 2.0, "p99": 5.0}} for one in runs_of(1.0)]
    after = [{**one, "jct_s": {"mean": 1.0, "p99": 6.0}} for one in runs_of(1.0)]
    won, sentence = headline({"FCFS": before, "FastServe": after}, "FastServe")
    assert not won
    assert "its P99 1.2x LATER" in sentence


def test_what_was_not_measured_is_said_and_no_win() -> None:
    nothing = [result({}, [JobRecord("failed", 0.0, 5, error="gone")], ServerCounters())]
    won, sentence = headline({"FCFS": nothing, "FastServe": runs_of(1.0)}, "FastServe")
    assert not won
    assert "mean job completion not measured" in sentence
