"""Goes through the turns of a recorded run again, with a machine of this code, and compares what it says.

A machine's commands follow from its settings, its events and the times of its turns. So a replay of a run of the same
code says the same to the last number; where it does not, either the code has changed or something entered the machine
by another door.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.domain.turns import Turn


class Machine(Protocol):
    """The scheduler's or the KV manager's."""

    def handle(self, events: Sequence[Any], now_s: float) -> list[Any]:
        """Take a turn."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first turn, counted from 1, in which the machine said something else: from its command of this number on,
    counted from 0, it gave these, or raised this.
    """

    turn_number: int
    turn: Turn[Any, Any]
    command_number: int
    given: tuple[Any, ...]
    given_fault: Exception | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of a replay: turns and commands that were the same, the last error that the machine raised as
    recorded, and the difference that ended it, if any.
    """

    turns: int
    commands: int
    last_fault: Exception | None
    difference: Difference | None


def replay(
    make_machine: Callable[[], Machine],
    turns: Iterable[Turn[Any, Any]],
    counts: Callable[[Any], object] = lambda one: one,
) -> Replayed:
    """Replays until the first difference. `counts` gives what of a command is compared: recordings leave words out."""
    machine = make_machine()
    turn_count = command_count = 0
    last_fault: Exception | None = None
    for turn in turns:
        given, fault = _take(machine, turn)
        same = _same_from_start(turn.commands, given, counts)
        fault_name = None if fault is None else type(fault).__name__
        if fault_name != turn.fault or not len(given) == len(turn.commands) == same:
            difference = Difference(turn_count + 1, turn, same, tuple(given[same:]), fault)
            return Replayed(turn_count, command_count, last_fault, difference)
        if fault is not None:
            last_fault = fault
            machine = make_machine()
        turn_count += 1
        command_count += same
    return Replayed(turn_count, command_count, last_fault, None)


def _take(machine: Machine, turn: Turn[Any, Any]) -> tuple[Sequence[Any], Exception | None]:
    """The machine's commands, or the error that it raised: a bug may have been recorded, and is met again."""
    try:
        return machine.handle(turn.events, turn.now_s), None
    except Exception as error:
        return (), error


def _same_from_start(recorded: Sequence[Any], given: Sequence[Any], counts: Callable[[Any], object]) -> int:
    """How many commands are the same before the first that is not."""
    same = 0
    for one, other in zip(recorded, given, strict=False):
        if counts(one) != counts(other):
            break
        same += 1
    return same
