"""A recorder keeps within its bounds, loses at most the last second, and never ends a service."""

import gzip
import io
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from services.cli.up.up_command import flags_of_services
from services.cli.up.up_settings import UpSettings
from services.domain.errors import InvalidFieldError, ProtocolError, RecordingError
from services.domain.ids import Epoch, JobId
from services.runtime.recording import recorder as module
from services.runtime.recording.lines import Ending, Head, ending_line
from services.runtime.recording.reader import Recording
from services.runtime.recording.recorder import Recorder, recording
from services.runtime.recording.recording_settings import RecordingSettings
from services.runtime.settings import parse_flags, resolve
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import KvConnected, Submit, Tick, WakeAt, WorkerLost
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from tests.builders.recordings import FORMATS, record, turns_of
from tests.builders.waits import wait_until

CONFIG = SchedulerConfig()
HEAD = Head("scheduler", CONFIG, False, "0.1.0", "3.11.0", "2026-01-01T00:00:00+00:00")
LIMIT_S = 60.0


def file_recorder(path: Path, limit_bytes: int) -> Recorder:
    return Recorder(SCHEDULER_FORMAT, HEAD, path.open("xb"), limit_bytes)


def test_what_was_recorded_reads_back_with_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.gz"
    recorder = file_recorder(path, 1_000_000)
    handle = recorder.watching(Scheduler(CONFIG).handle)
    first = handle([KvConnected(), Submit(JobId("a/0"), 3, 4, 9.5)], 1.25)
    second = handle([Tick()], 1.0000000000000002)
    recorder.close()

    recording = Recording(path, FORMATS)
    turns = list(recording)
    assert recording.head == HEAD
    assert recording.ending is Ending.CLOSED
    assert [turn.now_s for turn in turns] == [1.25, 1.0000000000000002]
    assert turns[0].events == (KvConnected(), Submit(JobId("j0"), 3, 4, 9.5))
    told = [command._replace(message="") for command in first]  # what a client reads is not recorded
    assert [command._replace(job_id=JobId("a/0")) for command in turns[0].commands] == told
    assert list(turns[1].commands) == second


def test_a_recording_ends_before_its_limit_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_AT_BYTES", 2000)
    path = tmp_path / "one.jsonl.gz"
    limit_bytes = 8000
    recorder = file_recorder(path, limit_bytes)
    asked: list[float] = []

    def handle_unrecorded(events: Any, now_s: float) -> list[Any]:
        asked.append(now_s)
        return []

    handle = recorder.watching(handle_unrecorded)
    with caplog.at_level(logging.WARNING):
        for number in range(3000):
            handle([WorkerLost(Epoch(number * 7919 % 1_000_003))], number / 7)
        recorder.close()

    assert len(asked) == 3000
    assert limit_bytes / 2 < path.stat().st_size <= limit_bytes
    recording = Recording(path, FORMATS)
    turns = list(recording)
    assert recording.ending is Ending.LIMIT
    assert 100 < len(turns) < 3000
    assert [turn.now_s for turn in turns] == asked[: len(turns)]
    assert [line.message for line in caplog.records if "recording stopped" in line.message]


def test_after_the_limit_the_machine_goes_on_unrecorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_AT_BYTES", 1)
    path = tmp_path / "one.jsonl.gz"
    file = path.open("xb")
    recorder = Recorder(SCHEDULER_FORMAT, HEAD, file, module.LAST_LINE_BYTES + 1)
    handle = recorder.watching(lambda events, now_s: [WakeAt(now_s)])
    assert handle([Tick()], 3.0) == [WakeAt(3.0)]
    wait_until(lambda: file.closed, "recording ended", LIMIT_S)
    size_bytes = path.stat().st_size
    assert handle([Tick()], 4.0) == [WakeAt(4.0)]
    recorder.close()
    assert path.stat().st_size == size_bytes


class FullDisk(io.RawIOBase):
    """Accepts a given number of writes."""

    def __init__(self, writes: int) -> None:
        self.writes = writes

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes -= 1
        if self.writes < 0:
            raise OSError(28, os.strerror(28))
        return len(data)


def test_a_full_disk_ends_the_recording_and_not_the_service(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_AT_BYTES", 1)
    with caplog.at_level(logging.WARNING):
        disk = FullDisk(1)
        recorder = Recorder(SCHEDULER_FORMAT, HEAD, disk, 1_000_000)  # type: ignore[arg-type]
        handle = recorder.watching(lambda events, now_s: [WakeAt(now_s)])
        assert handle([Tick()], 0.5) == [WakeAt(0.5)]
        wait_until(lambda: disk.closed or not handle([Tick()], 1.0), "recording ended", LIMIT_S)
        assert handle([Tick()], 2.0) == [WakeAt(2.0)]
        recorder.close()
    assert any("No space left" in line.message for line in caplog.records)


class StuckDisk(io.RawIOBase):
    """Blocks until it is released."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.let_go.set()
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.let_go.wait(LIMIT_S)
        self.written += bytes(data)
        return len(data)


def test_a_disk_that_is_too_slow_ends_the_recording_before_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 10_000)
    disk = StuckDisk()
    recorder = Recorder(SCHEDULER_FORMAT, HEAD, disk, 1_000_000)  # type: ignore[arg-type]
    disk.let_go.clear()
    handle = recorder.watching(lambda events, now_s: [])
    for number in range(2000):
        handle([Tick()], float(number))
    disk.let_go.set()
    wait_until(lambda: disk.closed, "recording ended", LIMIT_S)
    _, *turns, last = gzip.decompress(disk.written).splitlines(keepends=True)
    assert last == ending_line(Ending.TOO_SLOW)
    # At most this much was waiting to be compressed, and the stuck writer already had as much again.
    assert 10_000 < sum(map(len, turns)) < 21_000 < 2000 * len(turns[0])


def test_a_turn_that_raised_is_recorded_with_its_events(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.gz"
    recorder = file_recorder(path, 1_000_000)

    def broken(events: Any, now_s: float) -> list[Any]:
        raise ProtocolError("job secret-4711/0 did what it may not")

    with pytest.raises(ProtocolError, match="4711"):
        recorder.watching(broken)([Submit(JobId("secret-4711/0"), 1, 1)], 3.0)
    recorder.close()
    (turn,) = turns_of(path)
    assert turn.events == (Submit(JobId("j0"), 1, 1),)
    assert turn.fault == "ProtocolError"
    assert b"4711" not in gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("machine", ["scheduler", "kvmanager"])
def test_a_recording_that_was_cut_off_anywhere_reads_up_to_there(
    tmp_path: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_AT_BYTES", 8000)
    whole = record(tmp_path / "records")[machine].read_bytes()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole)
    turns = turns_of(cut)
    counts = []
    last_line_bytes = len(gzip.compress(ending_line(Ending.CLOSED)))
    into_members = [found.start() + cut_at for found in re.finditer(b"\x1f\x8b\x08", whole) for cut_at in (1, 2, 3)]
    lengths = {*range(0, len(whole) - last_line_bytes, 97), *into_members}
    for length in sorted(length for length in lengths if length < len(whole) - last_line_bytes):
        cut.write_bytes(whole[:length])
        try:
            recording = Recording(cut, FORMATS)
        except RecordingError:
            assert length < 1000
            continue
        read = list(recording)
        assert read == turns[: len(read)]
        assert recording.ending is Ending.CUT_OFF
        counts.append(len(read))
    assert counts == sorted(counts)
    assert len(set(counts)) > 5
    assert counts[-1] > len(turns) / 2


@pytest.mark.parametrize("machine", ["scheduler", "kvmanager"])
def test_an_unpacked_recording_that_was_cut_off_inside_a_line_reads_up_to_there(tmp_path: Path, machine: str) -> None:
    text = gzip.decompress(record(tmp_path / "records")[machine].read_bytes())
    lines = text.splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    for length in (1, 10, len(lines[30]) - 1):
        cut.write_bytes(b"".join(lines[:30]) + lines[30][:length])
        assert len(turns_of(cut)) == 29


def test_every_life_of_a_service_has_a_recording_of_its_own(tmp_path: Path) -> None:
    settings = RecordingSettings.model_validate({"record": tmp_path / "made" / "here"})
    for _ in range(2):
        with recording(settings, SCHEDULER_FORMAT, CONFIG, strict=False) as recorder:
            assert recorder is not None
    names = sorted(path.name for path in (tmp_path / "made" / "here").iterdir())
    assert names == ["scheduler-001.jsonl.gz", "scheduler-002.jsonl.gz"]


def test_a_folder_holds_so_many_recordings_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RECORDINGS", 1)
    settings = RecordingSettings.model_validate({"record": tmp_path})
    with recording(settings, SCHEDULER_FORMAT, CONFIG, strict=False) as first:
        assert first is not None
    with recording(settings, SCHEDULER_FORMAT, CONFIG, strict=False) as second:
        assert second is None


def test_without_the_flag_nothing_is_recorded() -> None:
    with recording(RecordingSettings.model_validate({}), SCHEDULER_FORMAT, CONFIG, strict=False) as recorder:
        assert recorder is None


def test_a_folder_that_can_not_be_written_is_told_by_the_name_of_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = RecordingSettings.model_validate({"record": tmp_path / "file"})
    with (
        pytest.raises(InvalidFieldError, match="--record: can't write to"),
        recording(settings, SCHEDULER_FORMAT, CONFIG, strict=False),
    ):
        pass


def test_up_passes_the_flags_on_to_the_services_that_record() -> None:
    argv = ["--record", "some/folder", "--record-limit-mb", "7"]
    settings = resolve(UpSettings, "up", parse_flags(UpSettings, argv, "fastserve up"), {})
    flags = flags_of_services(settings, {}, None)
    for service in ("scheduler", "kvmanager"):
        assert " ".join(argv) in " ".join(flags[service])
    for service in ("gateway", "worker"):
        assert "--record" not in flags[service]


def test_the_head_says_versions_and_settings(tmp_path: Path) -> None:
    path = record(tmp_path)["kvmanager"]
    head = json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])
    assert head["recording"] == "kvmanager"
    assert head["format"] == 3
    assert head["settings"]["policy"] == ["Proactive", 4, 0.25, "proactive", True, True, True]
    assert set(head) == {"recording", "format", "fastserve", "python", "recorded_at", "strict", "settings"}
