"""A scheduler that has all tokens at once: what gateway and REST front cost without anything behind them.

Every interval is an iteration, in which each job gets a token; all of them go into one message, as the scheduler does
it. With `hold` no job gets any. Prints its address, then serves until stdin ends.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from fastserve.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.domain.errors import PeerMismatchError
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.submission import JobTimings, JobUpdate, ServingLimits, Submission
from services.runtime.process import die_with_parent
from services.runtime.server import RpcServer
from services.wire.gateway_scheduler import cancel_from_wire, limits_to_wire, submission_from_wire, updates_to_wire

LIMITS = ServingLimits(ready=True, max_model_len=1_000_000, device_pool_tokens=1_000_000)
_TIMINGS = JobTimings(0.0, 0.0, 0.0, 0)
_FIRST_TOKEN, _TOKENS = 300, 200


class StubScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """With `keeps_times`, `arrived_s` and `sent_s` say by time.perf_counter when jobs came and their tokens were sent;
    its first token then does not wait for an iteration.
    """

    def __init__(self, interval_s: float, *, hold: bool = False, keeps_times: bool = False) -> None:
        self._interval_s = interval_s
        self._hold = hold
        self._keeps_times = keeps_times
        self._server = RpcServer("127.0.0.1:0", ("fastserve.v1.SchedulerService",), self._register)
        self._jobs: dict[JobId, tuple[Submission, int]] = {}
        self._gateway: asyncio.Queue[scheduler_pb2.GatewayLinkResponse] = asyncio.Queue()
        self._iterating: asyncio.Task[None] | None = None
        self.arrived_s: dict[JobId, float] = {}
        self.sent_s: dict[JobId, list[float]] = {}

    def _register(self, server: grpc.aio.Server) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self._server.address

    async def start(self) -> None:
        """Begins to serve."""
        await self._server.start()
        if not self._hold:
            self._iterating = asyncio.create_task(self._iterate())

    async def stop(self) -> None:
        """Ends."""
        if self._iterating is not None:
            self._iterating.cancel()
        await self._server.stop(0.0)

    @property
    def open_jobs(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs)

    async def _iterate(self) -> None:
        due_s = time.perf_counter()
        while True:
            # By a fixed schedule: a late iteration does not delay the next.
            due_s = max(due_s + self._interval_s, time.perf_counter() - 1.0)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            self._send(list(self._jobs))

    def _send(self, jobs: list[JobId]) -> None:
        """One token for each."""
        updates = []
        for job_id in jobs:
            submission, number = self._jobs[job_id]
            token_id = _FIRST_TOKEN + number % _TOKENS
            is_last = number + 1 >= submission.sampling.max_tokens
            finish, timings = (EndReason.LENGTH, _TIMINGS) if is_last else (None, None)
            updates.append(JobUpdate(job_id, number, (token_id,), (), finish, None, timings))
            if is_last:
                del self._jobs[job_id]
            else:
                self._jobs[job_id] = (submission, number + 1)
            if self._keeps_times:
                self.sent_s.setdefault(job_id, []).append(time.perf_counter())
        if updates:
            self._gateway.put_nowait(scheduler_pb2.GatewayLinkResponse(updates=updates_to_wire(updates)))

    async def GatewayLink(  # noqa: N802 (as the protos have it)
        self, requests: AsyncIterator[scheduler_pb2.GatewayLinkRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.GatewayLinkResponse]:
        """Serves the one gateway."""
        reading = asyncio.create_task(self._read(requests))
        try:
            while True:
                yield await self._gateway.get()
        finally:
            reading.cancel()

    async def WorkerLink(  # noqa: N802 (as the protos have it)
        self, requests: AsyncIterator[scheduler_pb2.WorkerLinkRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.WorkerLinkResponse]:
        """Refuses: there is nothing for a worker to do."""
        raise PeerMismatchError("group", "there are no groups here")
        yield

    async def _read(self, requests: AsyncIterator[scheduler_pb2.GatewayLinkRequest]) -> None:
        async for request in requests:
            if request.HasField("hello"):
                welcome = scheduler_pb2.SchedulerWelcome(limits=limits_to_wire(LIMITS))
                self._gateway.put_nowait(scheduler_pb2.GatewayLinkResponse(welcome=welcome))
            elif request.HasField("submit"):
                submission = submission_from_wire(request.submit)
                self._jobs[submission.job_id] = (submission, 0)
                if self._keeps_times:
                    self.arrived_s[submission.job_id] = time.perf_counter()
                    self._send([submission.job_id])
            else:
                self._jobs.pop(cancel_from_wire(request.cancel)[0], None)


async def serve(interval_s: float, hold: bool) -> None:
    """Serves until stdin ends."""
    scheduler = StubScheduler(interval_s, hold=hold)
    await scheduler.start()
    print(scheduler.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await scheduler.stop()


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--interval-s", type=float, default=0.01)
    flags.add_argument("--hold", action="store_true")
    given = flags.parse_args()
    die_with_parent(os.getppid())
    asyncio.run(serve(given.interval_s, given.hold))
