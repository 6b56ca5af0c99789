"""The KV manager's streams: what is waiting to be written to the scheduler and to a worker. The messages of a turn are
one batch.
"""

from collections.abc import Sequence

from services.domain.ids import Epoch
from services.domain.protocol import KvToWorker
from services.domain.server_status import KvLinkItem
from services.runtime.outbox import Outbox

MOST_BATCHES = 10_000


class SchedulerStream(Outbox[tuple[int, Epoch, Sequence[KvLinkItem]]]):
    """A stream of the scheduler: what a group says of an epoch."""

    def __init__(self) -> None:
        super().__init__(MOST_BATCHES, "the scheduler")


class KvWorkerStream(Outbox[tuple[Epoch, Sequence[KvToWorker]]]):
    """A stream of a worker."""

    def __init__(self, group: int, epoch: Epoch) -> None:
        super().__init__(MOST_BATCHES, "the worker")
        self.group = group
        self.epoch = epoch
