"""Jobs in their total order, and how many there are on each level.

Plain sorted lists beat trees here: the longest queue holds some 20,000 jobs, bisecting it takes 15 comparisons and an
insertion moves 160 kB at most (about 4 us), while its top, which every decision walks, is a slice. Ranks and jobs are
two lists in parallel: comparing bare ranks is quicker than comparing pairs, and a slice of jobs needs no unpacking.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from services.domain.errors import ProtocolError
from services.domain.protocol import Rank
from services.kvmanager.policy.job import KvJob

LEVEL_LIMIT = 256


class RankedJobs:
    """Jobs that have a rank, by rank. Ranks are distinct, because arrival numbers are."""

    __slots__ = ("_jobs", "_ranks")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._jobs: list[KvJob] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[KvJob]:
        return iter(self._jobs)

    def add(self, job: KvJob) -> None:
        """Put a job at its rank."""
        assert job.rank is not None
        at = bisect_left(self._ranks, job.rank)
        self._ranks.insert(at, job.rank)
        self._jobs.insert(at, job)

    def remove(self, job: KvJob) -> None:
        """Take a job out, by the rank it was put at."""
        assert job.rank is not None
        at = bisect_left(self._ranks, job.rank)
        assert self._jobs[at] is job, job.told("is not where its rank says")
        del self._ranks[at]
        del self._jobs[at]

    def move(self, job: KvJob, rank: Rank) -> None:
        """Put a job at another rank than its own; to note it as its own is the caller's."""
        assert job.rank is not None
        ranks, jobs = self._ranks, self._jobs
        at = bisect_left(ranks, job.rank)
        assert jobs[at] is job, job.told("is not where its rank says")
        if (at == 0 or ranks[at - 1] < rank) and (at + 1 == len(ranks) or rank < ranks[at + 1]):
            ranks[at] = rank
            return
        del ranks[at], jobs[at]
        at = bisect_left(ranks, rank)
        ranks.insert(at, rank)
        jobs.insert(at, job)

    def slice(self, start: int, stop: int) -> list[KvJob]:
        """Jobs at these places, best first."""
        return self._jobs[start:stop]

    def lowest(self) -> KvJob | None:
        """The job that would run last."""
        return self._jobs[-1] if self._jobs else None

    def below(self, rank: Rank, limit: int) -> list[KvJob]:
        """At most `limit` jobs ranking strictly below, lowest first."""
        start = bisect_right(self._ranks, rank)
        lowest = self._jobs[max(start, len(self._jobs) - limit) :]
        lowest.reverse()
        return lowest


class JobOrder(RankedJobs):
    """All ranked jobs, counted by level."""

    __slots__ = ("level_counts",)

    def __init__(self) -> None:
        super().__init__()
        self.level_counts: list[int] = [0]

    def add(self, job: KvJob) -> None:
        super().add(job)
        assert job.rank is not None
        self._count(job.rank.level)

    def remove(self, job: KvJob) -> None:
        super().remove(job)
        assert job.rank is not None
        self.level_counts[job.rank.level] -= 1

    def move(self, job: KvJob, rank: Rank) -> None:
        assert job.rank is not None
        super().move(job, rank)
        if rank.level != job.rank.level:
            self.level_counts[job.rank.level] -= 1
            self._count(rank.level)

    def _count(self, level: int) -> None:
        if level >= LEVEL_LIMIT:
            raise ProtocolError(f"level {level} is beyond the limit of {LEVEL_LIMIT} levels")
        while level >= len(self.level_counts):
            self.level_counts.append(0)
        self.level_counts[level] += 1

    def jobs_through(self, levels: int) -> int:
        """Jobs in the `levels` highest levels."""
        return sum(self.level_counts[:levels])

    def last_of_window(self, size: int) -> Rank | None:
        """Rank of the last of the `size` best jobs; None if all jobs are among them."""
        return self._ranks[size - 1] if size < len(self._ranks) else None
