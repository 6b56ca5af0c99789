"""A replay gives the same commands as the run, and detects every change."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.simulate.replay_command import replay_file
from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch, JobId
from services.domain.protocol import (
    Applied,
    Arrive,
    ArrivedJob,
    Jobs,
    Offload,
    Order,
    OrderChange,
    Rank,
    Release,
    Resident,
    SchedulerToKv,
    Upload,
    WorkerPools,
)
from services.domain.turns import Turn
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    FromScheduler,
    FromWorker,
    SchedulerConnected,
    ToScheduler,
    ToWorker,
)
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.runtime.recording.lines import Head
from services.runtime.recording.recorder import Recorder
from services.scheduler.scheduler_config import LengthPredictor, PolicyName
from services.simulator.turn_replay import replay
from tests.builders.recordings import BUSY, lines_of, record, turns_of, write_lines
from tests.golden.story_server import StoryJob

MACHINES = ("scheduler", "kvmanager")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return record(tmp_path_factory.mktemp("recordings"))


def find(lines: list[Any], kind: str, skip: int = 5) -> tuple[int, list[Any]]:
    """The line and the event of this name, after so many of them; it may be inside another."""
    for number, line in enumerate(lines):
        for event in line.get("events", ()):
            named = event if event[0] == kind else event[-1] if len(event) == 3 else [None]
            if named[0] == kind:
                if skip == 0:
                    return number, named
                skip -= 1
    raise AssertionError(f"no {kind}")


def change(place: int, value: object) -> Callable[[list[Any]], None]:
    def changed(event: list[Any]) -> None:
        assert event[place] != value
        event[place] = value

    return changed


def end_early(event: list[Any]) -> None:
    event[3][0][2] = not event[3][0][2]


def plan_much_more(event: list[Any]) -> None:
    event[2][0][2] += 400


@pytest.mark.parametrize("machine", MACHINES)
def test_a_replay_gives_the_same_commands(files: dict[str, Path], machine: str) -> None:
    recording, outcome = replay_file(files[machine])
    turns = turns_of(files[machine])
    assert outcome.difference is None
    assert outcome.turns == len(turns) > 100
    assert outcome.commands == sum(len(turn.commands) for turn in turns) > 100
    assert recording.head.strict


@pytest.mark.parametrize("predictor", LengthPredictor)
def test_what_depends_on_clients_replays_from_their_numbers(tmp_path: Path, predictor: LengthPredictor) -> None:
    config = replace(BUSY.scheduler, policy=PolicyName.GITTINS, length_predictor=predictor)
    jobs = tuple(
        StoryJob(f"{number}/0", 0.1 * number, 5, 24, (2, 22)[number % 2], client_number=1 + number % 2)
        for number in range(60)
    )
    path = record(tmp_path, replace(BUSY, scheduler=config, jobs=jobs))["scheduler"]
    assert replay_file(path)[1].difference is None
    lines = lines_of(path)
    submits = [event for line in lines[1:-1] for event in line["events"] if event[0] == "Submit"]
    assert [event[5] for event in submits[:4]] == [1, 2, 1, 2]
    submits[-2][5], submits[-1][5] = submits[-1][5], submits[-2][5]
    assert replay_file(write_lines(tmp_path / "altered.jsonl", lines))[1].difference is not None


def test_the_recorded_run_moved_jobs_to_the_host_and_back(files: dict[str, Path]) -> None:
    commands = [command for turn in turns_of(files["kvmanager"]) for command in turn.commands]
    kinds = [type(command.message) for command in commands if isinstance(command, ToWorker)]
    assert kinds.count(Offload) > 3
    assert kinds.count(Upload) > 3


@pytest.mark.parametrize(
    ("machine", "kind", "alter"),
    [
        ("scheduler", "Submit", change(2, 999)),
        ("scheduler", "Submit", change(3, 1)),
        ("scheduler", "IterationResult", end_early),
        ("scheduler", "Resident", change(2, 1)),
        ("scheduler", "Grown", change(1, "j99")),
        ("kvmanager", "Arrive", change(1, ["j99", 3, 4, 0])),
        ("kvmanager", "Planned", plan_much_more),
        ("kvmanager", "Release", change(1, "j99")),
        ("kvmanager", "Applied", change(1, 999)),
        ("kvmanager", "Done", change(1, 999)),
    ],
)
def test_an_altered_event_is_noticed(
    files: dict[str, Path], tmp_path: Path, machine: str, kind: str, alter: Callable[[list[Any]], None]
) -> None:
    lines = lines_of(files[machine])
    number, event = find(lines, kind)
    alter(event)
    _, outcome = replay_file(write_lines(tmp_path / "altered.jsonl", lines))
    assert outcome.difference is not None
    # Not before the change, and soon after it; the first line is the head.
    assert number <= outcome.difference.turn_number < number + 60


@pytest.mark.parametrize("machine", MACHINES)
def test_a_turn_that_is_left_out_is_noticed_unless_nothing_followed_from_it(
    files: dict[str, Path], tmp_path: Path, machine: str
) -> None:
    lines = lines_of(files[machine])
    unnoticed = []
    for number in range(1, len(lines) - 1, 9):
        _, outcome = replay_file(write_lines(tmp_path / "altered.jsonl", [*lines[:number], *lines[number + 1 :]]))
        if outcome.difference is None:
            unnoticed.append(lines[number])
    assert [line for line in unnoticed if line["commands"]] == []


@pytest.mark.parametrize("machine", MACHINES)
def test_an_altered_command_is_noticed_in_its_turn(files: dict[str, Path], tmp_path: Path, machine: str) -> None:
    lines = lines_of(files[machine])
    number = next(number for number, line in enumerate(lines) if number > 40 and len(line.get("commands", ())) > 1)
    removed = lines[number]["commands"].pop(1)
    _, outcome = replay_file(write_lines(tmp_path / "altered.jsonl", lines))
    assert outcome.difference is not None
    assert outcome.difference.turn_number == number
    assert outcome.difference.command_number == 1
    assert type(outcome.difference.given[0]).__name__ == removed[0]
    assert outcome.turns == number - 1


class Faulty:
    """Returns how often it was called; raises on the event "break"."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, events: Any, now_s: float) -> list[int]:
        if "break" in events:
            raise ProtocolError("told so")
        self.count += 1
        return [self.count]


def test_a_recorded_fault_is_met_again_and_a_new_machine_goes_on() -> None:
    turns: list[Turn[Any, Any]] = [
        Turn(0.0, (), (1,)),
        Turn(1.0, ("break",), (), "ProtocolError"),
        Turn(2.0, (), (1,)),
    ]
    outcome = replay(Faulty, turns)
    assert outcome.difference is None
    assert outcome.turns == 3
    assert isinstance(outcome.last_fault, ProtocolError)


@pytest.mark.parametrize(
    "turn",
    [Turn(1.0, (), (), "ProtocolError"), Turn(1.0, ("break",), ()), Turn(1.0, ("break",), (), "AssertionError")],
)
def test_a_fault_that_is_only_on_one_side_is_a_difference(turn: Turn[Any, Any]) -> None:
    outcome = replay(Faulty, [turn])
    assert outcome.difference is not None
    assert outcome.turns == 0


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_the_command_says_that_all_is_identical(
    files: dict[str, Path], machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = turns_of(files[machine])
    commands = sum(len(turn.commands) for turn in turns)
    assert main(["replay", str(files[machine])]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == f"{len(turns)} turns, {commands} commands: identical"
    assert said.err == ""


def test_an_id_that_is_released_and_used_again_in_one_turn_replays(tmp_path: Path) -> None:
    knobs = KvConfig(kv_policy_named("proactive"))
    path = tmp_path / "kvmanager.jsonl.gz"
    head = Head("kvmanager", knobs, True, "0.1.0", "3.11.0", "2026-01-01T00:00:00+00:00")
    recorder = Recorder(KV_MANAGER_FORMAT, head, path.open("xb"), 1_000_000)
    handle = recorder.watching(KvManager(knobs).handle)
    epoch, job_id = Epoch(1), JobId("a/0")

    def said(*messages: SchedulerToKv) -> list[FromScheduler]:
        return [FromScheduler(epoch, message) for message in messages]

    def applied(command: int) -> FromWorker:
        return FromWorker(epoch, Applied(CommandNumber(command)))

    arrives = said(Arrive(ArrivedJob(job_id, 20, 40, 0)), Order((OrderChange(job_id, Rank(0, 0.0, 0)),)))
    pools = FromWorker(epoch, WorkerPools(epoch, 16, 100, 100))
    handle([SchedulerConnected(), pools, *said(Jobs(epoch, (), (), 16, (0.1,), None))], 1.0)
    handle(arrives, 2.0)
    handle([applied(1)], 2.1)
    handle([*said(Release(job_id)), *arrives], 3.0)
    assert handle([applied(3)], 3.1) == [ToScheduler(epoch, Resident(job_id, 48, 0, 0))]
    recorder.close()
    _, outcome = replay_file(path)
    assert outcome.difference is None


def test_the_command_shows_the_first_turn_that_differs(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(files["scheduler"])
    number, event = find(lines, "Submit")
    event[2] = 11
    assert main(["replay", str(write_lines(tmp_path / "altered.jsonl", lines))]) == 1
    said = capsys.readouterr().out
    assert f"turn {number} at " in said
    assert f"Submit(job_id='{event[1]}', prompt_tokens=11" in said
    recorded, replayed = said.split("then recorded:")[1].split("then replayed:")
    assert f"ArrivedJob(job_id='{event[1]}'" in recorded
    assert f"ArrivedJob(job_id='{event[1]}', known_tokens=11" in replayed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a recording"),
        (b"hello\n", "is not a recording"),
        (b'{"recording": "toaster", "format": 3}\n', "is not a recording of a scheduler or a kvmanager"),
        (b'{"recording": "scheduler", "format": 1}\n', "has format 1, but this version reads format 3"),
        (b'{"recording": "scheduler", "format": 3}\n', "has no valid field 'settings'"),
        (b'{"recording": "scheduler", "format": 3, "settings": {"max_batch": 1}}\n', "has settings that differ"),
        (b"\x1f\x8b\x08\x00garbage", "is not a recording|is damaged"),
    ],
)
def test_the_command_refuses_a_file_that_is_no_recording_in_one_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(said, error)


def test_the_command_refuses_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert "can't be read: No such file" in capsys.readouterr().err


def test_the_command_names_the_damaged_line(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(files["scheduler"])
    lines[6]["events"] = [["Submit", "j0", "many", 1, None, 0, None, False, None]]
    assert main(["replay", str(write_lines(tmp_path / "damaged.jsonl", lines))]) == 2
    assert "line 7: 'many' is not of type int" in capsys.readouterr().err
