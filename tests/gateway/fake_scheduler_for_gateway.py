"""The scheduler's end of GatewayLink, over real gRPC: it sends the tokens that a test gives it, and shows what the
gateway has asked for.

A test takes each job as it arrives (`next_job`) and sends its tokens, or sets `script` so that every job runs by
itself.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastserve.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from services.domain.errors import DuplicateRequestError, FastServeError, InvalidFieldError, PeerMismatchError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.prompt_logprobs import PromptLogprobs
from services.domain.submission import JobTimings, JobUpdate, ServingLimits, Submission
from services.runtime.server import RpcServer
from services.wire.gateway_scheduler import cancel_from_wire, limits_to_wire, submission_from_wire, updates_to_wire

SOON_S = 60.0
READY = ServingLimits(ready=True, max_model_len=512, device_pool_tokens=400)
TIMINGS = JobTimings(queue_s=0.25, prefill_s=0.5, decode_s=1.0, preemptions=2)


Stream = asyncio.Queue[scheduler_pb2.GatewayLinkResponse | None]
"""The messages for one gateway; None ends the stream."""


def prompt_score(prompt: Sequence[int], position: int, alternatives: int) -> tuple[float, list[tuple[int, float]]]:
    """What the fake says of a prompt's token: its log probability, and the best ones (itself at even positions)."""
    own = -position / 4
    best = own if position % 2 == 0 else own + 0.125
    first = prompt[position] if position % 2 == 0 else (prompt[position] + 1) % 400
    return own, [((first + place) % 400, best - place) for place in range(alternatives)]


class FakeJob:
    """A job as the scheduler sees it."""

    def __init__(self, scheduler: "FakeSchedulerForGateway", submission: Submission, stream: Stream) -> None:
        self._scheduler = scheduler
        self.streams = [stream]
        self.submission = submission
        self.token_ids = list(submission.output)
        self.logprobs = list(submission.output_logprobs)
        self.finish: EndReason | None = None
        self.cancelled: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()

    @property
    def job(self) -> JobId:
        return self.submission.job_id

    def update(
        self,
        token_ids: Sequence[int] = (),
        finish: EndReason | None = None,
        logprobs: Sequence[TokenLogprob] = (),
        timings: JobTimings = TIMINGS,
    ) -> JobUpdate:
        """Records news of this job and returns it, without sending it."""
        first = len(self.token_ids)
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.finish = finish
        return JobUpdate(self.job, first, token_ids, logprobs, finish, None, None if finish is None else timings)

    def send(
        self,
        *token_ids: int,
        finish: EndReason | None = None,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """Sends the tokens of one iteration."""
        self._scheduler.send([self.update(token_ids, finish, logprobs)])

    def send_prompt(self, first_token: int = 1, stop: int | None = None) -> None:
        """Sends log probabilities of the prompt's tokens, those of `prompt_score`; `stop`: before this one."""
        prompt, wanted = self.submission.prompt, self.submission.sampling.prompt_logprobs
        assert wanted is not None, "they were not asked for"
        part = PromptLogprobs(first_token, array("f"), array("I"), array("f"))
        for position in range(first_token, len(prompt) if stop is None else stop):
            own, top = prompt_score(prompt, position, wanted)
            part.logprobs.append(own)
            part.top_token_ids.extend(token_id for token_id, _ in top)
            part.top_logprobs.extend(logprob for _, logprob in top)
        if part.token_count:
            self._scheduler.send([JobUpdate(self.job, len(self.token_ids), (), (), prompt_logprobs=part)])

    def refuse(self, error: FastServeError, stream: Stream | None = None) -> None:
        """Refuses the job to the gateway that sent it, or to another one."""
        update = JobUpdate(self.job, 0, (), (), None, error, None)
        (stream or self.streams[0]).put_nowait(_updates([update]))

    def replay(self, stream: Stream) -> None:
        """Sends everything so far to a gateway that joins."""
        self.streams.append(stream)
        timings = None if self.finish is None else TIMINGS
        update = JobUpdate(self.job, 0, self.token_ids, self.logprobs, self.finish, None, timings, is_joined=True)
        stream.put_nowait(_updates([update]))

    async def cancel_reason(self) -> EndReason:
        return await asyncio.wait_for(asyncio.shield(self.cancelled), SOON_S)


def _updates(updates: Sequence[JobUpdate]) -> scheduler_pb2.GatewayLinkResponse:
    return scheduler_pb2.GatewayLinkResponse(updates=updates_to_wire(updates))


class FakeSchedulerForGateway(scheduler_pb2_grpc.SchedulerServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """Start it, point gateways at `address`, and stop it at the end."""

    def __init__(self, limits: ServingLimits = READY, address: str = "127.0.0.1:0") -> None:
        self._server = RpcServer(
            address, ("fastserve.v1.SchedulerService", "fastserve.v1.AdminService"), self._register
        )
        self._arrived: asyncio.Queue[FakeJob] = asyncio.Queue()
        self._streams: list[Stream] = []
        self.limits = limits
        self.jobs: dict[JobId, FakeJob] = {}
        self.hellos: list[scheduler_pb2.GatewayHello] = []
        self.status = admin_pb2.Status(model="tiny", policy="fcfs")
        self.script: Callable[[Submission], Sequence[int]] | None = None
        self.script_finish = EndReason.LENGTH
        self.mismatch: str | None = None
        self.keep_jobs = True
        self.answers_cancels = True

    def _register(self, server: Any) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self, server)

    @property
    def address(self) -> str:
        return self._server.address

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        self.break_streams()
        await self._server.stop(0.1)

    def break_streams(self) -> None:
        """Ends the streams; the scheduler lives on, and keeps its jobs."""
        for stream in self._streams:
            stream.put_nowait(None)

    async def next_job(self) -> FakeJob:
        return await asyncio.wait_for(self._arrived.get(), SOON_S)

    @property
    def waiting_jobs(self) -> int:
        """The number of jobs that have arrived and that `next_job` has not taken."""
        return self._arrived.qsize()

    def send(self, updates: Sequence[JobUpdate]) -> None:
        """Sends the news of one turn, to each gateway what concerns its own jobs."""
        for stream in self._streams:
            own = [update for update in updates if stream in self.jobs[update.job_id].streams]
            if own:
                stream.put_nowait(_updates(own))

    def set_limits(self, limits: ServingLimits) -> None:
        self.limits = limits
        for stream in self._streams:
            stream.put_nowait(scheduler_pb2.GatewayLinkResponse(limits=limits_to_wire(limits)))

    async def GatewayLink(
        self, requests: AsyncIterator[scheduler_pb2.GatewayLinkRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.GatewayLinkResponse]:
        if self.mismatch is not None:
            raise PeerMismatchError("model_fingerprint", self.mismatch)
        stream: Stream = asyncio.Queue()
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            while (response := await stream.get()) is not None:
                yield response
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if stream in self._streams:
                self._streams.remove(stream)

    async def _read(
        self,
        requests: AsyncIterator[scheduler_pb2.GatewayLinkRequest],
        stream: Stream,
    ) -> None:
        async for request in requests:
            if request.HasField("hello"):
                self.hellos.append(request.hello)
                welcome = scheduler_pb2.SchedulerWelcome(limits=limits_to_wire(self.limits))
                stream.put_nowait(scheduler_pb2.GatewayLinkResponse(welcome=welcome))
                self._streams.append(stream)
            elif request.HasField("submit"):
                self._on_submit(submission_from_wire(request.submit), stream)
            else:
                self._on_cancel(*cancel_from_wire(request.cancel), stream)

    def _on_submit(self, submission: Submission, stream: Stream) -> None:
        known = self.jobs.get(submission.job_id)
        if known is not None and self.keep_jobs:
            if known.submission.body_digest == submission.body_digest:
                known.replay(stream)
            else:
                known.refuse(DuplicateRequestError("the request id is already in use with a different body"), stream)
            return
        job = self.jobs[submission.job_id] = FakeJob(self, submission, stream)
        if self.script is None:
            self._arrived.put_nowait(job)
            return
        if submission.sampling.prompt_logprobs is not None:
            job.send_prompt()
        token_ids = self.script(submission)
        wanted = submission.sampling.logprobs
        for number, token_id in enumerate(token_ids, 1):
            top = tuple(((token_id + place) % 400, -1.0 - place) for place in range(wanted or 0))
            logprobs = () if wanted is None else (TokenLogprob(token_id, -1.0, top),)
            job.send(token_id, finish=self.script_finish if number == len(token_ids) else None, logprobs=logprobs)

    def _on_cancel(self, name: JobId, reason: EndReason, stream: Stream) -> None:
        """Ignores a gateway that does not follow the job, as the real scheduler does."""
        job = self.jobs.get(name)
        if job is None or job.cancelled.done() or stream not in job.streams:
            return
        job.cancelled.set_result(reason)
        if job.finish is None and self.answers_cancels:
            job.send(finish=EndReason.STOP if reason is EndReason.STOP else EndReason.ABORT)

    async def WorkerLink(
        self, requests: AsyncIterator[scheduler_pb2.WorkerLinkRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.WorkerLinkResponse]:
        """Refuses: no worker dials a fake scheduler."""
        raise PeerMismatchError("group", "there are no groups here")
        yield

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: Any) -> admin_pb2.GetStatusResponse:
        return admin_pb2.GetStatusResponse(status=self.status)

    async def WatchStatus(
        self, request: admin_pb2.WatchStatusRequest, context: Any
    ) -> AsyncIterator[admin_pb2.WatchStatusResponse]:
        if request.interval_s < 0.05:
            raise InvalidFieldError("interval_s", "must be from 0.05 to 60")
        while True:
            yield admin_pb2.WatchStatusResponse(status=self.status)
            await asyncio.sleep(request.interval_s)
