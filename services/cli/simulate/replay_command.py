"""`fastserve replay`: run a recording of a scheduler or a KV manager through the machine of this version, and say
whether it decides the same.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.domain.errors import RecordingError
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.kvmanager.machine.kv_manager import KvManager
from services.runtime.command_line import CommandError, ExitCode, parser
from services.runtime.recording.codec import Codec
from services.runtime.recording.lines import Ending, Head
from services.runtime.recording.reader import Recording
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from services.simulator.turn_replay import Difference, Machine, Replayed, replay

MOST_SHOWN = 40

MACHINES: dict[str, Callable[[Head], Machine]] = {
    SCHEDULER_FORMAT.name: lambda head: Scheduler(head.settings, strict=head.strict),
    KV_MANAGER_FORMAT.name: lambda head: KvManager(head.settings),
}

ENDINGS = {
    Ending.CLOSED: "",
    Ending.LIMIT: "the recording ends at its size limit",
    Ending.TOO_SLOW: "the recording ends early because its disk was too slow",
    Ending.CUT_OFF: "the recording is cut off: the service was killed or is still running",
}


def replay_file(path: Path) -> tuple[Recording, Replayed]:
    """Replays a recording. Raises RecordingError."""
    recording = Recording(path, (SCHEDULER_FORMAT, KV_MANAGER_FORMAT))
    make_machine = MACHINES[recording.head.machine]
    # Compared as they would be written, because a recording does not hold all of a command.
    counts = Codec(recording.machine.command, recording.machine.rules).encode
    return recording, replay(lambda: make_machine(recording.head), recording, counts)


def _listed(title: str, items: tuple[Any, ...]) -> list[str]:
    lines = [f"  {title}:", *(f"    {item}" for item in items[:MOST_SHOWN])]
    if len(items) > MOST_SHOWN:
        lines.append(f"    and {len(items) - MOST_SHOWN} more")
    return lines if items else [f"  {title}: none"]


def _place(error: Exception) -> str:
    """An error's message and the place where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}"


def difference_lines(difference: Difference) -> list[str]:
    """The turn, its recorded commands, and those that the machine decides now."""
    turn = difference.turn
    lines = [f"turn {difference.turn_number} at {turn.now_s!r} s differs"]
    lines += _listed("events", turn.events)
    lines += _listed("the same commands first", turn.commands[: difference.command_number])
    if turn.fault is not None:
        lines.append(f"  recorded: {turn.fault} was raised")
    else:
        lines += _listed("then recorded", turn.commands[difference.command_number :])
    if difference.given_fault is not None:
        lines.append(f"  replayed: {_place(difference.given_fault)}")
    else:
        lines += _listed("then replayed", difference.given)
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 identical, 1 different, 2 a file that can't be replayed."""
    arguments = parser("replay", "Replay a recording that a scheduler or KV manager made with --record, and compare.")
    arguments.add_argument("file", type=Path, metavar="FILE", help="a recording (.jsonl.gz, or unpacked)")
    path = arguments.parse_args(argv).file
    try:
        recording, outcome = replay_file(path)
    except RecordingError as error:
        raise CommandError(str(error), ExitCode.REFUSED) from None
    head = recording.head
    print(f"{head.machine} of fastserve {head.version}, Python {head.python}, recorded at {head.recorded_at}")
    if outcome.last_fault is not None:
        print(f"raised as recorded: {_place(outcome.last_fault)}")
    if outcome.difference is not None:
        print(f"{outcome.turns} turns, {outcome.commands} commands: identical, then different:")
        print("\n".join(difference_lines(outcome.difference)))
        return ExitCode.FAILED
    print(f"{outcome.turns} turns, {outcome.commands} commands: identical")
    if ENDINGS[recording.ending]:
        print(f"fastserve replay: {ENDINGS[recording.ending]}", file=sys.stderr)
    return ExitCode.OK
