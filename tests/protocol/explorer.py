"""All interleavings of a small world, breadth first, and what must be true of them.

Safety: no step raises. The machines check their own invariants after every turn and refuse what PROTOCOL forbids
their peers; the worker model raises on every wrong read or write of a block and on a lost host copy.

Progress: where nothing can happen any more but mishaps, everybody has ended and every block is free; and no state is
reached twice on any path without mishaps. Tokens are part of the state and only grow, so a way back would be an
endless loop without a token. Both together say that every path that mishaps leave alone ends well.
"""

from array import array
from dataclasses import dataclass

from services.domain.errors import ProtocolError
from tests.fakes.fake_worker_tables import ViolationError
from tests.protocol.group_world import world_of
from tests.protocol.instance import Instance
from tests.protocol.world import State, Step

BROKEN = (ViolationError, ProtocolError, AssertionError, KeyError, IndexError)
"""What a step raises when a rule is broken, or when a machine is led astray by a message that it should not have got.
"""


class CounterexampleError(Exception):
    """A path to a forbidden state."""

    def __init__(self, problem: str, path: tuple[Step, ...]) -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        lines = [f"{number}. {' '.join(map(str, step))}" for number, step in enumerate(self.path, 1)]
        return "\n".join([self.problem, f"after {len(self.path)} steps:", *lines])


class TooManyStatesError(Exception):
    """The instance has more states than allowed; no counterexample was found so far."""


@dataclass(frozen=True, slots=True)
class Explored:
    """Counts of what was explored."""

    states: int
    steps: int
    ends: int
    scheduler_states: int
    manager_states: int
    worker_states: int


class Explorer:
    """One exploration."""

    def __init__(self, instance: Instance, most_states: int) -> None:
        self._world = world_of(instance)
        self._most_states = most_states
        self._seen: dict[int, int] = {}
        self._parents = array("l")
        self._ways: list[Step] = []
        self._targets = array("l")
        """Targets of all steps except mishaps, state after state; those of a state begin at its offset."""
        self._offsets = array("l")
        self._ends = 0

    def explore(self) -> Explored:
        """Explore all states. Raises CounterexampleError, or TooManyStatesError for more than `most_states` states."""
        start = self._world.start()
        self._meet(start, -1, ("start",))
        level = [start]
        steps = 0
        number = 0
        while level:
            following: list[State] = []
            for state in level:
                self._offsets.append(len(self._targets))
                steps += self._expand(state, number, following)
                number += 1
            level = following
        self._offsets.append(len(self._targets))
        self._check_no_way_back()
        world = self._world
        return Explored(number, steps, self._ends, len(world.schedulers), len(world.managers), len(world.workers))

    def _meet(self, state: State, parent: int, step: Step) -> tuple[int, bool]:
        """Number of a state, and whether it is new. States are known by their hash: with 64 bits, a million of them
        have no two alike.
        """
        key = hash(state)
        known = self._seen.get(key)
        if known is not None:
            return known, False
        number = len(self._seen)
        self._seen[key] = number
        self._parents.append(parent)
        self._ways.append(step)
        if number == self._most_states:
            raise TooManyStatesError(f"more than {self._most_states} states")
        return number, True

    def _expand(self, state: State, number: int, following: list[State]) -> int:
        world = self._world
        count = 0
        goes_on = False
        for step in world.possible(state):
            count += 1
            try:
                after = world.take(state, step)
            except BROKEN as broken:
                raise CounterexampleError(f"{type(broken).__name__}: {broken}", (*self._path(number), step)) from broken
            target, is_new = self._meet(after, number, step)
            if is_new:
                following.append(after)
            if not world.is_mishap(step):
                goes_on = True
                self._targets.append(target)
        if not goes_on:
            if not world.is_end(state):
                raise CounterexampleError("nothing goes on, and not everybody ended", self._path(number))
            self._ends += 1
        return count

    def _path(self, number: int) -> tuple[Step, ...]:
        steps: list[Step] = []
        while number > 0:
            steps.append(self._ways[number])
            number = self._parents[number]
        return tuple(reversed(steps))

    def _check_no_way_back(self) -> None:
        """Take away states that nobody left leads to, until none is left; what can't be taken away lies on or behind
        a loop.
        """
        count = len(self._seen)
        leading = array("l", bytes(count * self._targets.itemsize))
        for target in self._targets:
            leading[target] += 1
        free = [number for number in range(count) if leading[number] == 0]
        taken = 0
        while free:
            number = free.pop()
            taken += 1
            for at in range(self._offsets[number], self._offsets[number + 1]):
                target = self._targets[at]
                leading[target] -= 1
                if leading[target] == 0:
                    free.append(target)
        if taken < count:
            number = next(number for number in range(count) if leading[number])
            raise CounterexampleError("a loop without a token begins at or before this", self._path(number))


def explore(instance: Instance, most_states: int = 3_000_000) -> Explored:
    """Explore all states of an instance. Raises CounterexampleError or TooManyStatesError."""
    return Explorer(instance, most_states).explore()
