"""Machines by number: what makes exploring the real code fast.

The machines are deterministic, so what one does depends on its state and on what it is given, nothing else. Far fewer
states of one machine exist than of the whole world. Each is kept once, pickled, under a number; a step is taken once
and remembered.
"""

import pickle
from collections.abc import Callable, Hashable
from typing import Any


class Store:
    """States of one machine. With `merge` equal keys are one state; without, every step makes a new one, so that
    histories stay whole.
    """

    def __init__(self, key: Callable[[Any], Hashable], check: Callable[[Any], None], *, merge: bool) -> None:
        self._key = key
        self._check = check
        self._merge = merge
        self._pickled: list[bytes] = []
        self._numbers: dict[Hashable, int] = {}
        self._steps: dict[Hashable, tuple[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._pickled)

    def put(self, machine: Any) -> int:
        """The number of a machine's state; checks its invariants."""
        self._check(machine)
        key = self._key(machine) if self._merge else len(self._pickled)
        number = self._numbers.setdefault(key, len(self._pickled))
        if number == len(self._pickled):
            self._pickled.append(pickle.dumps(machine, pickle.HIGHEST_PROTOCOL))
        return number

    def get(self, number: int) -> Any:
        """A copy of the machine in this state."""
        return pickle.loads(self._pickled[number])

    def step(self, number: int, given: Hashable, act: Callable[[Any], Any]) -> tuple[int, Any]:
        """The state after `act`, which must depend on `given` only, and its result."""
        known = self._steps.get((number, given)) if self._merge else None
        if known is None:
            machine = self.get(number)
            returned = act(machine)
            known = (self.put(machine), returned)
            if self._merge:
                self._steps[number, given] = known
        return known
