"""Jobs in their total order, counted by level."""

from services.domain.errors import ProtocolError
from services.domain.protocol import Rank
from services.domain.ranked import Ranked
from services.kvmanager.machine.kv_job import KvJob

LEVEL_LIMIT = 256


class JobOrder(Ranked[KvJob]):
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
            raise ProtocolError(f"level {level} must be less than {LEVEL_LIMIT}")
        while level >= len(self.level_counts):
            self.level_counts.append(0)
        self.level_counts[level] += 1

    def jobs_through(self, levels: int) -> int:
        """The number of jobs in the `levels` highest levels."""
        return sum(self.level_counts[:levels])

    def last_of_window(self, size: int) -> Rank | None:
        """The rank of the last of the `size` best jobs; None if all jobs are among them."""
        return self.rank_at(size - 1) if size < len(self) else None
