"""Repeats the turns of a recorded run with a machine of the present code, and compares its commands.

A machine's commands depend only on its settings, its events and the times of its turns. So a replay with the same code
gives exactly the same commands. If it does not, either the code has changed or the machine depends on something else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.domain.turns import Turn


class Machine(Protocol):
    """The machine of the scheduler or the KV manager."""

    def handle(self, events: Sequence[Any], now_s: float) -> list[Any]:
        """Take a turn."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first turn that differed. `turn_number` counts from 1; `command_number`, counted from 0, is that of the first
    command that differed. `given` are the machine's commands from there on, `given_fault` is the error that it raised.
    """

    turn_number: int
    turn: Turn[Any, Any]
    command_number: int
    given: tuple[Any, ...]
    given_fault: Exception | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: the number of equal turns and commands, the last error that the machine raised as
    recorded, and the difference that ended the replay, if any.
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
    """Replays up to the first difference. `counts` returns the part of a command that is compared, because recordings
    leave some texts out.
    """
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
    """The machine's commands, or the error that it raised: a recorded bug occurs again."""
    try:
        return machine.handle(turn.events, turn.now_s), None
    except Exception as error:
        return (), error


def _same_from_start(recorded: Sequence[Any], given: Sequence[Any], counts: Callable[[Any], object]) -> int:
    """The number of equal commands before the first difference."""
    same = 0
    for one, other in zip(recorded, given, strict=False):
        if counts(one) != counts(other):
            break
        same += 1
    return same
