"""How far the estimated next scheduled time (ENST, PAPER 3) of the jobs of a group was from what came.

An estimate is taken at the end of the turn in which a job was left in no plan, because that is when its KV may have to
give way. It is judged when a later plan names the job: by then the job has waited for as long as ENST should have said.
Only jobs whose KV was computed in this epoch are estimated, so a job's first wait does not count. A job that ends
before, and whatever waits when an epoch begins, is not judged. Policies without quanta rank jobs without ENST, so there
is nothing to judge.

It looks on: the machine decides the same with and without it, and recordings do not know it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import Finished, Jobs, PlanEntry, Planned, Recalled, Release
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import Event, FromScheduler

OnJudged = Callable[[int, float, float], None]
"""Called with the group, the estimate and the wait, both in seconds."""


class _Estimate(NamedTuple):
    made_s: float
    enst_s: float


class EnstErrors:
    """The estimates of one group, at most one per job."""

    def __init__(self, group: int, on_judged: OnJudged) -> None:
        self._group = group
        self._on_judged = on_judged
        self._epoch: Epoch | None = None
        self._plans: dict[PlanNumber, tuple[PlanEntry, ...]] = {}
        self._estimates: dict[JobId, _Estimate] = {}

    def after_turn(self, machine: KvManager, events: Sequence[Event], now_s: float) -> None:
        """The machine has taken these events."""
        left: list[PlanEntry] = []
        for event in events:
            if not isinstance(event, FromScheduler):
                continue
            message = event.message
            if isinstance(message, Jobs):
                self._begin(message)
                left.clear()
            elif event.epoch != self._epoch:
                continue
            elif isinstance(message, Planned):
                self._planned(message, now_s)
            elif isinstance(message, Finished | Recalled):
                left.extend(self._plans.pop(message.plan_number, ()))
            elif isinstance(message, Release):
                self._estimates.pop(message.job_id, None)
        for entry in left:
            enst_s = machine.enst_of(entry.job_id, now_s)
            if enst_s is not None:
                self._estimates[entry.job_id] = _Estimate(now_s, enst_s)

    def _begin(self, jobs: Jobs) -> None:
        self._epoch = jobs.epoch if jobs.quanta_s else None
        self._plans.clear()
        self._estimates.clear()

    def _planned(self, planned: Planned, now_s: float) -> None:
        self._plans[planned.plan_number] = planned.entries
        for entry in planned.entries:
            estimate = self._estimates.pop(entry.job_id, None)
            if estimate is not None:
                self._on_judged(self._group, estimate.enst_s, now_s - estimate.made_s)
