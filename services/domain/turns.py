"""A turn of a state machine: the events that it took at once, and the commands that it returned.

Scheduler and KV manager are machines whose commands depend only on their events and the times of their turns, so a
list of turns describes a run completely. Recordings store it, and the simulator's replay repeats it.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")


@dataclass(frozen=True, slots=True)
class Turn(Generic[EventT, CommandT]):
    """One call of `handle`.

    `fault` is the name of the error that it raised, None if it returned. A turn with a fault has no commands, and a new
    machine takes the turns after it.
    """

    now_s: float
    events: tuple[EventT, ...]
    commands: tuple[CommandT, ...]
    fault: str | None = None
