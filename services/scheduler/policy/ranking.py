"""All living jobs by rank: those that can be planned now, and the others.

Two sorted lists, every job in one of them: a move costs O(log jobs), and a decision walks only the front of `ready`.
Ranks are distinct, because arrival numbers are.

PROTOCOL rule 6 lives here: a job that became the top one stays it until it ran one iteration or ended. Without it, two
jobs that are promoted in turn take each other's blocks before either ran, for ever. Whoever would pass the top job
before that is let in behind it: the top job is lifted just above the newcomer for the time being, and falls back to the
place its policy gave it when it has run.
"""

from collections.abc import Iterator

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from services.domain.protocol import OrderChange, Rank
from services.scheduler.policy.job import Job


class Ranking:
    """The order of jobs, and what changed in it since it was last told."""

    def __init__(self) -> None:
        self._ready = SortedList()
        self._others = SortedList()
        self._by_arrival: dict[int, Job] = {}
        self._changed: dict[int, Job] = {}
        self._top: Job | None = None
        self._top_ran = False

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
        by_arrival = self._by_arrival
        return (by_arrival[rank[2]] for rank in self._ready)

    def add(self, job: Job) -> None:
        """A new job; it is not ready."""
        self._by_arrival[job.arrival_number] = job
        self._others.add(job.rank)
        self._changed[job.arrival_number] = job

    def remove(self, job: Job) -> None:
        """The job ended."""
        self._list_of(job).remove(job.rank)
        job.is_ready = False
        self._changed.pop(job.arrival_number, None)
        del self._by_arrival[job.arrival_number]
        if job is self._top:
            self._top = None

    def set_ready(self, job: Job, is_ready: bool) -> None:
        """Whether the job can be planned now."""
        if job.is_ready is is_ready:
            return
        self._list_of(job).remove(job.rank)
        job.is_ready = is_ready
        self._list_of(job).add(job.rank)

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
        changes = tuple(OrderChange(job.job, job.rank) for job in self._changed.values())
        self._changed = {}
        return changes

    def _first(self) -> Rank | None:
        """The highest rank."""
        ready, others = self._ready, self._others
        if not ready or not others:
            either: SortedList = ready or others
            return either[0] if either else None
        return min(ready[0], others[0])  # type: ignore[no-any-return]

    def _list_of(self, job: Job) -> SortedList:
        return self._ready if job.is_ready else self._others

    def _move(self, job: Job, rank: Rank) -> None:
        if rank == job.rank:
            return
        ranks = self._list_of(job)
        ranks.remove(job.rank)
        ranks.add(rank)
        job.rank = rank
        self._changed[job.arrival_number] = job
