"""The worker groups that there are. A group begins with its first worker, and is forgotten some time after it had its
last worker and its last job. Called within the driver's turn.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from services.domain.iteration import PlanWork
from services.domain.protocol import PlanEntry
from services.domain.server_status import JobStatus
from services.runtime.recording.recorder import Recorder
from services.scheduler.job_traces import JobTraces
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import Command, Event, KvConnected
from services.scheduler.routing.router import Router
from services.scheduler.scheduler_config import SchedulerConfig
from services.scheduler.server_totals import ServerTotals
from services.scheduler.worker_group import STRICT, KvLine, WorkerGroup

_log = logging.getLogger(__name__)

Work = Callable[[PlanEntry, float | None], PlanWork]


class WorkerGroups(dict[int, WorkerGroup]):
    """By number. `recorder_of` makes the recorder of a group that begins; `work` is as of WorkerGroup."""

    def __init__(
        self,
        config: SchedulerConfig,
        router: Router,
        kv: KvLine,
        work: Work,
        recorder_of: Callable[[int], Recorder | None],
        traces: JobTraces | None = None,
    ) -> None:
        super().__init__()
        self.totals = ServerTotals()
        """Counters, with those of forgotten groups."""
        self.forget_s: float | None = None
        """When `settle` should be called next."""
        self.kv_is_open = False
        """Whether there is a stream to the KV manager."""
        self._config = config
        self._router = router
        self._kv = kv
        self._work = work
        self._recorder_of = recorder_of
        self._traces = traces

    def sorted(self) -> tuple[WorkerGroup, ...]:
        """All, by number."""
        return tuple(group for _, group in sorted(self.items()))

    def first_jobs(self, most: int) -> tuple[JobStatus, ...]:
        """The first `most` jobs, group by group in the order in which they would run. O(jobs)."""
        listed: list[JobStatus] = []
        for group in self.sorted():
            if len(listed) < most:
                listed.extend(group.first_jobs(most - len(listed)))
        return tuple(listed)

    def begun(self, number: int, events: list[Event]) -> WorkerGroup:
        """The group, which begins if there is none; `events` are those of its turn."""
        group = self.get(number)
        if group is None:
            group = self._begin(number)
            if self.kv_is_open:
                events.append(KvConnected())
        return group

    def _heard(self, group: int, events: Sequence[Event], commands: Sequence[Command], now_s: float) -> None:
        """A turn of a group's machine, for those who only listen."""
        self._router.heard(group, events, commands, now_s)
        if self._traces is not None:
            self._traces.heard(group, events, commands, now_s)

    def _begin(self, number: int) -> WorkerGroup:
        machine = Scheduler(self._config, strict=STRICT)
        self._router.add_group(number, machine)
        recorder = self._recorder_of(number)
        group = self[number] = WorkerGroup(number, machine, self._kv, self._work, self._heard, recorder)
        return group

    def settle(self, now_s: float) -> None:
        """After a turn: let workers go that are about to end, and forget the groups whose time has come."""
        self.forget_s = None
        for number, group in list(self.items()):
            group.release_worker()
            due_s = group.forget_at_s(now_s)
            if due_s is None:
                continue
            if due_s > now_s:
                self.forget_s = due_s if self.forget_s is None else min(due_s, self.forget_s)
                continue
            _log.info("group %d: forgotten", number)
            self.totals.forget(group)
            self._router.remove_group(number)
            del self[number]
            if group.recorder is not None:
                # It waits for the disk.
                asyncio.get_running_loop().run_in_executor(None, group.recorder.close)
