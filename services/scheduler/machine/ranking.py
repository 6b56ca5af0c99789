"""All living jobs by rank: those that can be planned now, and the others.

Every job is in one of two orders. The ready jobs, no more than the device holds, are in a sorted list; a decision
walks only its front. The others may number 20,000, and only the first of them is ever looked at. They are in a heap
with lazy deletion: an entry that is no longer a job's rank stays until it reaches the front, or until such entries may
make up half of the heap and it is swept. So a move costs O(log jobs). Ranks are distinct, because arrival numbers are.

This module implements PROTOCOL rule 6: a job that becomes the top job stays on top until it has run one iteration or
ended. Without the rule, two jobs that are promoted in turn could take each other's blocks forever before either ran.
For the same reason a promoted job with a chunked prefill stays on top until its last chunk: where KV is dropped, one
chunk is not progress. A job that would overtake the top job before then is placed behind it: the top job is raised just
above the newcomer for the time being, and returns to the place its policy gave it once it has run.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from services.domain.protocol import OrderChange, Rank
from services.domain.ranked import Ranked
from services.domain.records import records
from services.scheduler.job import Job

LEAST_SWEEP = 1024


class Ranking:
    """The order of jobs, and the changes since they were last taken."""

    def __init__(self) -> None:
        self._ready = Ranked[Job]()
        self._other_ranks: list[Rank] = []
        self._sweep_at = LEAST_SWEEP
        self._by_arrival: dict[int, Job] = {}
        self._changed: dict[int, Job] = {}
        self._top: Job | None = None
        self._top_ran = False
        self._first_may_differ = False
        """The first job may have changed since `hold_top` was last called."""

    def __len__(self) -> int:
        """All living jobs."""
        return len(self._by_arrival)

    @property
    def top(self) -> Job | None:
        """The job that is held on top, or was most recently."""
        return self._top

    @property
    def top_ran(self) -> bool:
        """Whether the top job has run since it came to the top."""
        return self._top_ran

    def living(self) -> Iterator[Job]:
        """All living jobs, in the order of their arrival."""
        return iter(self._by_arrival.values())

    def by_rank(self) -> Iterator[Job]:
        """All living jobs, in the order in which they would run. O(jobs)."""
        return iter(sorted(self._by_arrival.values(), key=lambda job: job.rank))

    def ready(self) -> Iterator[Job]:
        """Jobs that can be planned now, in order. Must not be changed during iteration."""
        return iter(self._ready)

    def add(self, job: Job) -> None:
        """Add a new job, which is not ready."""
        self._by_arrival[job.arrival_number] = job
        self._enter_list(job)
        self._changed[job.arrival_number] = job
        self._first_may_differ = True

    def remove(self, job: Job) -> None:
        self._leave_list(job)
        job.is_ready = False
        self._changed.pop(job.arrival_number, None)
        del self._by_arrival[job.arrival_number]
        self._first_may_differ = True
        if job is self._top:
            self._top = None

    def set_ready(self, job: Job, is_ready: bool) -> None:
        """Set whether the job can be planned now."""
        if job.is_ready is is_ready:
            return
        self._leave_list(job)
        job.is_ready = is_ready
        self._enter_list(job)

    def place(self, job: Job, place: Rank) -> None:
        """Move the job to the place its policy gave it, but one that is lent an iteration only once that is planned."""
        job.place = place
        if job.lent_to_token is None:
            self._move(job, place)

    def lend(self, job: Job, rank: Rank) -> None:
        """Move the job ahead of its place for the time of a loan."""
        self._move(job, rank)

    def take_back(self, job: Job) -> None:
        """The last iteration of the job's loan was planned, so it will run: the job returns to its own place."""
        if job is self._top:
            self._top_ran = True
        self._move(job, job.place)

    def ran(self, job: Job) -> None:
        """An iteration with the job ended: it need not be held on top any longer."""
        if job is self._top:
            self._top_ran = True
            if job.lent_to_token is None:
                self._move(job, job.place)

    def hold_top(self) -> None:
        """Apply rule 6. Called once per turn, after all moves."""
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
        """The ranks that changed since the last call, in the order of each job's first change."""
        if not self._changed:
            return ()
        changes = tuple(records(OrderChange, [(job.job_id, job.rank) for job in self._changed.values()]))
        self._changed = {}
        return changes

    def first_not_ready(self) -> Rank | None:
        """The best rank of a job that can't be planned now; None: all can."""
        others = self._other_ranks
        while others and not self._is_others(others[0]):
            heappop(others)
        return others[0] if others else None

    def _first(self) -> Rank | None:
        ready, other = self._ready.rank_at(0), self.first_not_ready()
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
        """Whether the rank still belongs to a job that is not ready."""
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
        # The heap entry of a job that is not ready is skipped when it comes up.

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
