"""Cancelled requests about which the scheduler may still send news.

A client that lost its stream may come back at once with the same request id, while the last updates on the cancelled
jobs are still on their way; taken for updates on the new jobs with the same ids, they would end those. So the new
request waits until they have arrived, or for a second, because a scheduler need not report on a cancelled job.
"""

import asyncio
from collections.abc import Sequence

from services.domain.ids import JobId, request_id_of

LIMIT_S = 1.0


class _Cancelled:
    __slots__ = ("gone", "jobs", "timer")

    def __init__(self, jobs: Sequence[JobId]) -> None:
        self.jobs = set(jobs)
        self.gone = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None


class CancelledRequests:
    """Requests by id. Their number stays bounded, because each is forgotten after the time limit."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Cancelled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def add(self, request_id: str, jobs: Sequence[JobId]) -> None:
        """Remembers jobs that were cancelled just now."""
        leaving = self._by_id[request_id] = _Cancelled(jobs)
        leaving.timer = asyncio.get_running_loop().call_later(LIMIT_S, self._forget, request_id, leaving)

    def on_last_word(self, job_id: JobId) -> None:
        """The scheduler has sent its last update on this job."""
        request_id = request_id_of(job_id)
        leaving = self._by_id.get(request_id)
        if leaving is not None:
            leaving.jobs.discard(job_id)
            if not leaving.jobs:
                self._forget(request_id, leaving)

    async def wait_gone(self, request_id: str) -> None:
        """Waits until no more updates can arrive on an earlier request with this id."""
        leaving = self._by_id.get(request_id)
        if leaving is not None:
            await leaving.gone.wait()

    def clear(self) -> None:
        """Forgets all requests: the stream has ended, so no more updates can arrive."""
        for request_id, leaving in list(self._by_id.items()):
            self._forget(request_id, leaving)

    def _forget(self, request_id: str, leaving: _Cancelled) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
        leaving.gone.set()
        if self._by_id.get(request_id) is leaving:
            del self._by_id[request_id]
