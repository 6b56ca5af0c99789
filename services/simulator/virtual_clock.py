"""The virtual clock: a heap of (time, sequence number), and the turns of the inboxes that received something.

A message is posted for a time and delivered at that time. Messages of the same time are delivered in the order in which
they were posted, so that every link is first in, first out, and nothing depends on how a heap breaks ties. Each part
that takes turns has an inbox. The clock stands still until all messages of the present time are delivered. Then each
inbox that received something takes one turn with all of it, in the order of their first messages, like the services'
drivers. Messages from that turn are delivered before time advances, if no link delays them.

A simulation that makes no progress is ended. Every token, end and refusal is progress, and the number of turns between
two of them is limited.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any


class StuckError(Exception):
    """The simulated server makes no progress, because of a bug in what is simulated or in the simulator. The message
    describes what each job is waiting for.
    """

    @property
    def reason(self) -> str:
        """The first line of the message, without the state of the jobs."""
        return str(self).partition("\n")[0]


class VirtualClock:
    """Delivers messages in the order of time. `most_idle_turns`: the limit of turns without progress."""

    def __init__(self, most_idle_turns: int) -> None:
        self.now_s = 0.0
        self._most_idle_turns = most_idle_turns
        self._idle_turns = 0
        self._posted = 0
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._due: list[VirtualInbox] = []

    def post(self, at_s: float, deliver: Callable[[Any], None], item: object) -> None:
        """Call `deliver` with the item at the time `at_s`."""
        assert at_s >= self.now_s, f"posted for {at_s} s, but it is already {self.now_s} s"
        self._posted += 1
        heappush(self._heap, (at_s, self._posted, deliver, item))

    def take_turn(self, inbox: "VirtualInbox") -> None:
        """Let the inbox take a turn once all messages of the present time are delivered."""
        self._due.append(inbox)

    def progressed(self) -> None:
        """A job made progress."""
        self._idle_turns = 0

    def run(self) -> None:
        """Run until no messages are left. Raises StuckError if too many turns pass without progress."""
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
    """The events received since the last turn. `take` is called with them for a turn."""

    def __init__(self, clock: VirtualClock, take: Callable[[list[Any]], None]) -> None:
        self._clock = clock
        self._take = take
        self._events: list[Any] = []

    def put(self, events: Sequence[Any]) -> None:
        """Add a batch of events."""
        if not self._events:
            self._clock.take_turn(self)
        self._events.extend(events)

    def turn(self) -> None:
        """Take a turn with all waiting events."""
        events, self._events = self._events, []
        self._take(events)
