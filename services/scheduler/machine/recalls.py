"""Plans that were made ahead and are recalled before they are begun (PROTOCOL rule 42).

Of short iterations many are planned ahead (plan_lead). What happens meanwhile would wait for all of them: a job that
came to the device, or that is lent an iteration; the place and the blocks of one that ended early or was cancelled, or
that the KV manager asked for. So then the plans behind the next ones are recalled. The worker gives back those that it
has not begun, and they are made anew. Until its answer no plan is made, so both know which plans it is about.

A plan is recalled only if it is for decodes alone, and nobody in it is promoted or on a loan: what was promised with a
plan holds (rule 6), and no job's prefill is put off by those that come after it.
"""

from itertools import islice

from services.domain.errors import ProtocolError
from services.domain.ids import PlanNumber
from services.domain.protocol import Recalled
from services.scheduler.job import RESIDENT
from services.scheduler.machine.flight import Flight
from services.scheduler.machine.iterations import Iterations
from services.scheduler.machine.ranking import Ranking
from services.scheduler.policies.batch_limit import BatchLimit


class Recalls:
    """Looks at the plans under way whenever somebody came or left since the last look (`has_news`)."""

    def __init__(self, batch: BatchLimit, ranking: Ranking, iterations: Iterations) -> None:
        self._batch = batch
        self._ranking = ranking
        self._iterations = iterations
        self.has_news = False

    def due(self) -> PlanNumber | None:
        """The first of the plans to be recalled now, with all behind it; None: nothing is. O(batch + plans)."""
        iterations = self._iterations
        flights = iterations.unfinished
        if not self.has_news or iterations.recalled_from is not None:
            return None
        self.has_news = False
        least = iterations.lead.least
        if len(flights) <= least or not self._is_changed(flights[-1]):
            return None
        kept = max([least, *(place + 1 for place, flight in enumerate(flights) if flight.is_sure)])
        if kept < len(flights):
            iterations.recalled_from = flights[kept].plan_number
        return iterations.recalled_from

    def _is_changed(self, last: Flight) -> bool:
        """Whether the next batch should be another one than that of the last plan: one of its jobs has ended or is to
        go, or one of the first ready jobs is not in it.
        """
        if any(job.state is not RESIDENT for job in last.jobs):
            return True
        planned = {job.job_id for job in last.jobs}
        return any(job.job_id not in planned for job in islice(self._ranking.ready(), self._batch.jobs))

    def given_back(self, first_number: PlanNumber | None, now_s: float) -> list[Recalled]:
        """The worker gave back its plans from this number on, or none; the KV manager is to know. Raises ProtocolError
        if it was not asked for any, or not for all of them.
        """
        iterations = self._iterations
        if iterations.recalled_from is None:
            raise ProtocolError(f"the worker gave back its plans from {first_number} on, but was not asked for any")
        if first_number is not None and first_number < iterations.recalled_from:
            raise ProtocolError(f"the worker gave back plan {first_number}, which was not recalled")
        iterations.recalled(first_number, now_s)
        told: list[Recalled] = []
        flights = iterations.unfinished
        while first_number is not None and flights and flights[-1].plan_number >= first_number:
            told.append(Recalled(iterations.undo_last(now_s)))
        return told
