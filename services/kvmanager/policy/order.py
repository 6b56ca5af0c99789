"""Jobs in their total order, and how many there are on each level.

A plain sorted list beats trees here: the longest queue holds some 20,000 jobs, bisecting it takes 15 comparisons and
an insertion moves 160 kB at most (about 4 us), while walking its top, which every decision does, is a slice.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from services.domain.errors import ProtocolError
from services.domain.protocol import Rank
from services.kvmanager.policy.job import KvJob

LEVEL_LIMIT = 256


class RankedJobs:
    """Jobs that have a rank, by rank."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, KvJob]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[KvJob]:
        return (job for _, job in self._entries)

    def add(self, job: KvJob) -> None:
        """Put a job at its rank."""
        assert job.rank is not None
        insort(self._entries, (job.rank, job))

    def remove(self, job: KvJob) -> None:
        """Take a job out, by the rank it was put at."""
        assert job.rank is not None
        at = bisect_left(self._entries, (job.rank, job))
        assert self._entries[at][1] is job, job.told("is not where its rank says")
        del self._entries[at]

    def slice(self, start: int, stop: int) -> list[KvJob]:
        """Jobs at these places, best first."""
        return [job for _, job in self._entries[start:stop]]

    def lowest(self) -> KvJob | None:
        """The job that would run last."""
        return self._entries[-1][1] if self._entries else None

    def below(self, rank: Rank, limit: int) -> list[KvJob]:
        """At most `limit` jobs ranking strictly below, lowest first."""
        start = bisect_right(self._entries, rank, key=lambda entry: entry[0])
        return [job for _, job in reversed(self._entries[max(start, len(self._entries) - limit) :])]


class JobOrder(RankedJobs):
    """All ranked jobs, counted by level."""

    __slots__ = ("level_counts",)

    def __init__(self) -> None:
        super().__init__()
        self.level_counts: list[int] = [0]

    def add(self, job: KvJob) -> None:
        super().add(job)
        assert job.rank is not None
        level = job.rank.level
        if level >= LEVEL_LIMIT:
            raise ProtocolError(f"level {level} is beyond the limit of {LEVEL_LIMIT} levels")
        while level >= len(self.level_counts):
            self.level_counts.append(0)
        self.level_counts[level] += 1

    def remove(self, job: KvJob) -> None:
        super().remove(job)
        assert job.rank is not None
        self.level_counts[job.rank.level] -= 1

    def jobs_through(self, levels: int) -> int:
        """Jobs in the `levels` highest levels."""
        return sum(self.level_counts[:levels])

    def last_of_window(self, size: int) -> Rank | None:
        """Rank of the last of the `size` best jobs; None if all jobs are among them."""
        return self._entries[size - 1][0] if size < len(self._entries) else None
