"""All living jobs by rank: those that can be planned now, and the others.

Every job is in one of two orders. Those that are ready, no more than the device holds, are a sorted list, of which a
decision walks only the front. There may be 20,000 others, and only the first of them is ever looked at: they are a heap
with lazy deletion, in which an entry that is not a job's rank any more stays until it comes up, or until half of the
heap may be such entries and it is swept. So a move costs O(log jobs). Ranks are distinct, because arrival numbers are.

PROTOCOL rule 6 lives here: a job that became the top one stays it until it ran one iteration or ended. Without it, two
jobs that are promoted in turn take each other's blocks before either ran, for ever. For the same reason a promoted job
whose prefill is in chunks stays it until the last of them: where KV is dropped, one chunk is no progress. Whoever would
pass the top job before that is let in behind it: the top job is lifted just above the newcomer for the time being, and
falls back to the place its policy gave it when it has run.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from services.domain.protocol import OrderChange, Rank
from services.domain.ranked import Ranked
from services.domain.records import records
from services.scheduler.job import Job

LEAST_SWEEP = 1024


class Ranking:
    """The order of jobs, and what changed in it since it was last told."""

    def __init__(self) -> None:
        self._ready = Ranked[Job]()
        self._other_ranks: list[Rank] = []
        self._sweep_at = LEAST_SWEEP
        self._by_arrival: dict[int, Job] = {}
        self._changed: dict[int, Job] = {}
        self._top: Job | None = None
        self._top_ran = False
        self._first_may_differ = False
        """Than when `hold_top` was last called."""

    @property
    def top(self) -> Job | None:
        """The job that is held on top, or was last there."""
        return self._top

    @property
    def top_ran(self) -> bool:
        """It has run since it became the top one."""
        return self._top_ran

    def by_rank(self) -> Iterator[Job]:
        """All living jobs, the first to run first. O(jobs)."""
        return iter(sorted(self._by_arrival.values(), key=lambda job: job.rank))

    def ready(self) -> Iterator[Job]:
        """Jobs that can be planned now, the first to run first. Not to be changed while it is walked."""
        return iter(self._ready)

    def add(self, job: Job) -> None:
        """A new job; it is not ready."""
        self._by_arrival[job.arrival_number] = job
        self._enter_list(job)
        self._changed[job.arrival_number] = job
        self._first_may_differ = True

    def remove(self, job: Job) -> None:
        """The job ended."""
        self._leave_list(job)
        job.is_ready = False
        self._changed.pop(job.arrival_number, None)
        del self._by_arrival[job.arrival_number]
        self._first_may_differ = True
        if job is self._top:
            self._top = None

    def set_ready(self, job: Job, is_ready: bool) -> None:
        """Whether the job can be planned now."""
        if job.is_ready is is_ready:
            return
        self._leave_list(job)
        job.is_ready = is_ready
        self._enter_list(job)

    def place(self, job: Job, place: Rank) -> None:
        """The policy moved the job."""
        job.place = place
        self._move(job, place)

    def ran(self, job: Job) -> None:
        """An iteration with the job ended: on top it need not be held any longer."""
        if job is self._top:
            self._top_ran = True
            self._move(job, job.place)

    def hold_top(self) -> None:
        """Rule 6, once a turn when all moves are made."""
        if not self._first_may_differ:
            return
        self._first_may_differ = False
        first = self._first()
        if first is None:
            return
        if self._top is not None and self._top.rank == first:
            return
        if self._top is not None and not self._top_ran:
            self._move(self._top, Rank(first.level, first.key - 1.0, self._top.arrival_number))
            return
        self._top = self._by_arrival[first.arrival_number]
        self._top_ran = False

    def take_changes(self) -> tuple[OrderChange, ...]:
        """The places that changed since this was last asked, in the order in which they first did."""
        if not self._changed:
            return ()
        changes = tuple(records(OrderChange, [(job.job_id, job.rank) for job in self._changed.values()]))
        self._changed = {}
        return changes

    def _first(self) -> Rank | None:
        """The highest rank."""
        ready = self._ready.rank_at(0)
        others = self._other_ranks
        while others and not self._is_others(others[0]):
            heappop(others)
        other = others[0] if others else None
        if ready is None or other is None:
            return ready or other
        return min(ready, other)

    def _push_other(self, rank: Rank) -> None:
        if len(self._other_ranks) >= self._sweep_at:
            self._other_ranks = [job.rank for job in self._by_arrival.values() if not job.is_ready]
            heapify(self._other_ranks)
            self._sweep_at = max(LEAST_SWEEP, 2 * len(self._other_ranks))
        heappush(self._other_ranks, rank)

    def _is_others(self, rank: Rank) -> bool:
        """Whether the rank is still that of a job that is not ready."""
        job = self._by_arrival.get(rank.arrival_number)
        return job is not None and not job.is_ready and job.rank == rank

    def _enter_list(self, job: Job) -> None:
        if job.is_ready:
            self._ready.add(job)
        else:
            self._push_other(job.rank)

    def _leave_list(self, job: Job) -> None:
        if job.is_ready:
            self._ready.remove(job)
        # That of another is passed over when it comes up.

    def _move(self, job: Job, rank: Rank) -> None:
        if rank == job.rank:
            return
        if job.is_ready:
            self._ready.move(job, rank)
        else:
            self._push_other(rank)
        job.rank = rank
        self._changed[job.arrival_number] = job
        self._first_may_differ = True
