"""Which worker has which group, and the epochs, which the scheduler gives out. Pure.

Theory of operation. A worker claims its group with every stream. The first claim holds until its stream is gone, and
every other worker is refused meanwhile (PROTOCOL rule 39): it can't be told from one that was started by mistake. So
the next worker after a death has to come again until the loss of the first is noticed. Only the same life of a worker
takes its own place at once, because it has given up its older stream itself.

An epoch is greater than all that were given out before: by this scheduler, since it counts; by the leaders of earlier
terms, since each term has epochs of its own; and by a scheduler without a term, since the KV manager and the workers
say what they have met (PROTOCOL rule 40). No clock decides, and no epoch is given out twice. A worker whose claim is
void, say one that was paused and woke up, can't come back with its old epoch; it can only claim again.
"""

from dataclasses import dataclass

from services.domain.errors import GroupTakenError
from services.domain.ids import EPOCHS_OF_A_TERM, Epoch


@dataclass(frozen=True, slots=True)
class WorkerClaim:
    """A group's worker. `since_s` is when this life of it first had the group."""

    worker_id: str
    epoch: Epoch
    device: str
    since_s: float


class WorkerClaims:
    """The claims of all groups."""

    def __init__(self) -> None:
        self._claims: dict[int, WorkerClaim] = {}
        self._newest = Epoch(0)

    def begin_term(self, term: int) -> None:
        """This scheduler leads from now on; 0: there are no terms."""
        self._newest = Epoch(max(self._newest, term * EPOCHS_OF_A_TERM))

    def claim(self, group: int, worker_id: str, last_epoch: Epoch, device: str, now_s: float) -> Epoch:
        """The epoch of the worker's new stream. Raises GroupTakenError while another worker has the group."""
        held = self._claims.get(group)
        since_s = now_s
        if held is not None:
            if held.worker_id != worker_id:
                raise GroupTakenError(
                    f"group {group} has a worker already, on {held.device}, for {now_s - held.since_s:.0f} s: "
                    "give this one another --group, or end that one"
                )
            since_s = held.since_s
        epoch = self._newest = Epoch(max(self._newest, last_epoch) + 1)
        self._claims[group] = WorkerClaim(worker_id, epoch, device, since_s)
        return epoch

    def release(self, group: int, epoch: Epoch) -> None:
        """The stream of this epoch is gone. Nothing happens if a later one has the group."""
        held = self._claims.get(group)
        if held is not None and held.epoch == epoch:
            del self._claims[group]

    def outlived_by(self, met: Epoch) -> bool:
        """The KV manager has met this epoch. Whether it was given out by another scheduler, so that the KV manager
        would refuse what was given out here so far.
        """
        if met <= self._newest:
            return False
        self._newest = met
        return True
