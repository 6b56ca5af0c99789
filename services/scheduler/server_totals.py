"""What is counted over all worker groups, those that are forgotten among them: these counters never fall."""

from collections.abc import Iterable, Mapping

from services.domain.server_status import IterationTokens, ServerCounters
from services.scheduler.worker_group import WorkerGroup


class ServerTotals:
    """The counters of forgotten groups, and sums of them and of living ones."""

    def __init__(self) -> None:
        self._counters = ServerCounters()
        self._tokens = IterationTokens()
        self._rejections: Mapping[str, int] = {}

    def forget(self, group: WorkerGroup) -> None:
        """A group is about to be forgotten."""
        self._counters = self.counters((group,))
        self._tokens = self.iteration_tokens((group,))
        self._rejections = self.rejections((group,), {})

    def counters(self, groups: Iterable[WorkerGroup]) -> ServerCounters:
        """All counters together."""
        return ServerCounters.total((self._counters, *(group.counters() for group in groups)))

    def iteration_tokens(self, groups: Iterable[WorkerGroup]) -> IterationTokens:
        """Tokens of an iteration, over all iterations."""
        each = (self._tokens, *(group.machine.counters.iteration_tokens for group in groups))
        counts = tuple(sum(column) for column in zip(*(one.counts for one in each), strict=True))
        return IterationTokens(counts=counts, sum=sum(one.sum for one in each))

    def rejections(self, groups: Iterable[WorkerGroup], by_router: Mapping[str, int]) -> dict[str, int]:
        """Jobs refused, by reason."""
        total: dict[str, int] = {}
        for counts in (self._rejections, by_router, *(group.machine.counters.rejections for group in groups)):
            for reason, count in counts.items():
                total[reason] = total.get(reason, 0) + count
        return total
