"""The virtual clock: a heap of (time, sequence number), and the turns of who heard something.

A message is posted for a time and delivered then; messages of the same time in the order in which they were posted,
so that every link is first in, first out and nothing depends on how a heap breaks ties. Who takes turns has an inbox.
The clock stands still until everything of this time is delivered; then everybody who heard something takes one turn
with all of it, in the order in which they first heard something. That is how the services' drivers take theirs. What
they say in that turn is delivered before the time goes on, if no link delays it.

A simulation that does not get on is ended: every token, end and refusal is progress, and between two of them only so
many turns are taken.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any


class StuckError(Exception):
    """The simulated server does not get on: a bug of what is simulated, or of the simulator, told with who waits for
    what.
    """

    @property
    def reason(self) -> str:
        """Its first line; the others tell who waits."""
        return str(self).partition("\n")[0]


class VirtualClock:
    """Time, and what happens next. `most_idle_turns`: between two steps of progress."""

    def __init__(self, most_idle_turns: int) -> None:
        self.now_s = 0.0
        self._most_idle_turns = most_idle_turns
        self._idle_turns = 0
        self._posted = 0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._due: list[VirtualInbox] = []

    def post(self, at_s: float, deliver: Callable[[Any], None], item: object) -> None:
        """Call `deliver` with the item then."""
        assert at_s >= self.now_s, f"posted for {at_s}, which is over at {self.now_s}"
        self._posted += 1
        heappush(self._heap, (at_s, self._posted, deliver, item))

    def take_turn(self, inbox: "VirtualInbox") -> None:
        """It has something to be taken when this time's messages are delivered."""
        self._due.append(inbox)

    def progressed(self) -> None:
        """Somebody got something out of it."""
        self._idle_turns = 0

    def run(self) -> None:
        """Until nothing happens any more. Raises StuckError when turns are taken for nothing."""
        heap = self._heap
        while heap or self._due:
            if self._due and (not heap or heap[0][0] > self.now_s):
                due, self._due = self._due, []
                for inbox in due:
                    inbox.turn()
                self._idle_turns += len(due)
                if self._idle_turns > self._most_idle_turns:
                    raise StuckError(f"{self._idle_turns} turns were taken, and no job got a token or ended")
                continue
            at_s, _, deliver, item = heappop(heap)
            self.now_s = at_s
            deliver(item)


class VirtualInbox:
    """What somebody heard since the last turn. `take` is the turn."""

    def __init__(self, clock: VirtualClock, take: Callable[[list[Any]], None]) -> None:
        self._clock = clock
        self._take = take
        self._events: list[Any] = []

    def put(self, events: Sequence[Any]) -> None:
        """One batch of a peer."""
        if not self._events:
            self._clock.take_turn(self)
        self._events.extend(events)

    def turn(self) -> None:
        """All of it at once."""
        events, self._events = self._events, []
        self._take(events)
