"""A turn of a state machine: what it was told at once, and what it said to that.

Scheduler and KV manager are machines whose commands follow from their events and the times of their turns alone, and so
a list of turns is all there is to know of a run. Recordings keep it, the simulator's replay goes through it again.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")


@dataclass(frozen=True, slots=True)
class Turn(Generic[EventT, CommandT]):
    """One call of `handle`.

    `fault` is the name of the error that it raised, None if it returned; a fault gives no commands, and a new machine
    takes the turns after it.
    """

    now_s: float
    events: tuple[EventT, ...]
    commands: tuple[CommandT, ...]
    fault: str | None = None
