"""Times at which something is due for a job, with lazy deletion: an ended job stays in the heap until its time comes,
or until such jobs may make up half of the heap and it is swept.

Each job is in a heap at most once. Pushing and popping cost O(log jobs), sweeping costs O(1) per push on average, and
a decision looks only at what is due.
"""

from heapq import heapify, heappop, heappush

from services.scheduler.job import CLOSING, ENDED, Job
from services.scheduler.machine.scheduler_events import WakeAt

LEAST_SWEEP = 1024


class Timers:
    """A heap of jobs by due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Job]] = []
        self._sweep_at = LEAST_SWEEP

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, due_s: float, job: Job) -> None:
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[-1].state not in (CLOSING, ENDED)]
            heapify(self._heap)
            self._sweep_at = max(LEAST_SWEEP, 2 * len(self._heap))
        heappush(self._heap, (due_s, job.arrival_number, job.stay_number, job))

    def next_s(self) -> float | None:
        """The earliest due time; None if the heap is empty."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> Job | None:
        """Remove and return the job that is due first; None if its time has not come."""
        return heappop(self._heap)[-1] if self._heap and self._heap[0][0] <= now_s else None


class Alarm:
    """The Tick that the machine has asked for."""

    def __init__(self) -> None:
        self._time_s: float | None = None

    def set(self, next_s: float | None, now_s: float) -> WakeAt | None:
        """Something is due at `next_s`, if at all: what is to be asked for, unless an earlier Tick will come."""
        if self._time_s is not None and self._time_s <= now_s:
            self._time_s = None
        if next_s is None or (self._time_s is not None and self._time_s <= next_s):
            return None
        self._time_s = next_s
        return WakeAt(next_s)
