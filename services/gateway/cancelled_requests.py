"""Cancelled requests of which the scheduler may still speak.

A client that lost its stream may come back at once with the same request id, while the last words on the cancelled jobs
are still under way; taken for news of the new jobs of the same names they would end them. So a successor waits until
those words are heard, or until a second has passed, because a scheduler need not say anything about a cancelled job.
"""

import asyncio
from collections.abc import Sequence

from services.domain.ids import JobId

LIMIT_S = 1.0


class _Cancelled:
    __slots__ = ("gone", "jobs", "timer")

    def __init__(self, jobs: Sequence[JobId]) -> None:
        self.jobs = set(jobs)
        self.gone = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None


class CancelledRequests:
    """Requests by id. Bounded by the time limit: each is forgotten by then."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Cancelled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def add(self, request_id: str, jobs: Sequence[JobId]) -> None:
        """These jobs were cancelled just now."""
        leaving = self._by_id[request_id] = _Cancelled(jobs)
        leaving.timer = asyncio.get_running_loop().call_later(LIMIT_S, self._forget, request_id, leaving)

    def on_last_word(self, job_id: JobId) -> None:
        """The scheduler will say no more of this job."""
        request_id = job_id.rpartition("/")[0]
        leaving = self._by_id.get(request_id)
        if leaving is not None:
            leaving.jobs.discard(job_id)
            if not leaving.jobs:
                self._forget(request_id, leaving)

    async def wait_gone(self, request_id: str) -> None:
        """Until nothing more is to be heard of an earlier request of this id."""
        leaving = self._by_id.get(request_id)
        if leaving is not None:
            await leaving.gone.wait()

    def clear(self) -> None:
        """Nothing more is to be heard of anyone: the stream has ended."""
        for request_id, leaving in list(self._by_id.items()):
            self._forget(request_id, leaving)

    def _forget(self, request_id: str, leaving: _Cancelled) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
        leaving.gone.set()
        if self._by_id.get(request_id) is leaving:
            del self._by_id[request_id]
