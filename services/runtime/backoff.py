"""The pauses of a link that redials, or of a process that is started again."""


class Backoff:
    """Pauses between attempts to dial: they double from `first_s` up to `most_s`; `reset` starts over from
    `first_s`.
    """

    def __init__(self, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The pause before the next attempt."""
        pause_s = self._next_s
        self._next_s = min(self._next_s * 2, self._most_s)
        return pause_s

    def reset(self) -> None:
        """Must be called when an attempt has succeeded."""
        self._next_s = self._first_s
