"""Running a trace against a gateway: open loop, so that a slow server never slows its clients down.

One asyncio task per job, one channel for all. Requests are encoded before the clock starts, and a message costs a few
microseconds here, because this process shares its cores with the server that it measures.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from services.domain.generation import EndReason, GenerateRequest, SamplingRequest
from services.domain.server_status import ServerCounters, ServerStatus
from services.loadgen.gateway_client import GatewayClient, encode
from services.runtime.command_line import CommandError
from services.workloads.job_records import JobRecord
from services.workloads.workload import TraceJob, random_token_ids

MOST_SAMPLES = 100_000
SAMPLE_INTERVAL_S = 0.25
SETTLE_LIMIT_S = 3.0
SETTLE_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class TraceRunOptions:
    """How to run a trace: arrivals are multiplied by `time_scale`; each job is given up after `job_limit_s`. The server
    is asked for its status every `sample_interval_s`, which costs it processor time.
    """

    time_scale: float = 1.0
    seed: int = 0
    temperature: float = 0.0
    model: str = ""
    job_limit_s: float = 3600.0
    sample_interval_s: float = SAMPLE_INTERVAL_S


@dataclass(slots=True)
class TraceRun:
    """A trace run under way, then its outcome. `samples` are statuses with their time since the start."""

    records: list[JobRecord]
    started: int = 0
    ended: int = 0
    failed: int = 0
    output_tokens: int = 0
    elapsed_s: float = 0.0
    samples: list[tuple[float, ServerStatus]] = field(default_factory=list)
    before: ServerStatus | None = None
    after: ServerStatus | None = None
    after_s: float = 0.0
    lost: str | None = None
    """Why the server could not be asked at the end: `after` is then the last known status, from `after_s`."""

    @property
    def counters(self) -> ServerCounters:
        """The server's counters during this run alone."""
        assert self.before is not None, "the trace run has not begun"
        assert self.after is not None, "the trace run has not ended"
        return self.after.counters_since(self.before, self.after_s)


def requests_of(trace: Sequence[TraceJob], options: TraceRunOptions, vocabulary_size: int) -> list[bytes]:
    """The encoded requests. No request ids: a repeated run must not join the jobs of the last one."""
    return [encode(_request(job, number, options, vocabulary_size)) for number, job in enumerate(trace)]


def _request(job: TraceJob, number: int, options: TraceRunOptions, vocabulary_size: int) -> GenerateRequest:
    sampling = SamplingRequest(
        max_tokens=job.output_tokens,
        ignore_eos=True,
        temperature=options.temperature,
        seed=options.seed + number,
    )
    if job.prompt is not None and job.prompt_token_ids is None:
        return GenerateRequest(options.model, text=job.prompt, sampling=sampling, client=job.client)
    token_ids: Sequence[int] | None = job.prompt_token_ids
    if token_ids is None:
        token_ids = random_token_ids(job.prompt_tokens, vocabulary_size, f"{options.seed}/prompt/{number}")
    return GenerateRequest(options.model, token_ids=token_ids, sampling=sampling, client=job.client)


class TraceRunner:
    """Runs one trace; others may read `trace_run` meanwhile (the progress bar does)."""

    def __init__(self, client: GatewayClient, trace: Sequence[TraceJob], options: TraceRunOptions) -> None:
        self._client = client
        self._options = options
        self._start = 0.0
        self.trace_run = TraceRun(
            [JobRecord(job.job_id, job.arrival_s * options.time_scale, job.prompt_tokens) for job in trace]
        )
        self._trace = trace

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    async def run(self) -> TraceRun:
        """Sends all jobs and waits for the last token. Raises CommandError if the server can't be reached at all."""
        models = await self._client.models()
        model = next((model for model in models if model.model_id == self._options.model), models[0])
        requests = requests_of(self._trace, self._options, model.vocabulary_size)
        self.trace_run.before = await self._client.status()
        self._start = time.perf_counter()
        sampler = asyncio.create_task(self._sample())
        try:
            await self._send(requests)
            self.trace_run.elapsed_s = self.now_s()
            self.trace_run.after_s, self.trace_run.after = await self._last_status(self.trace_run.before)
        finally:
            sampler.cancel()
            with suppress(asyncio.CancelledError):
                await sampler
        return self.trace_run

    async def _send(self, requests: Sequence[bytes]) -> None:
        async with asyncio.TaskGroup() as jobs:
            for record, request in zip(self.trace_run.records, requests, strict=True):
                wait_s = record.arrival_s - self.now_s()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                self.trace_run.started += 1
                jobs.create_task(self._job(record, request))

    async def _job(self, record: JobRecord, request: bytes) -> None:
        try:
            async for message in self._client.progress(request, self._options.job_limit_s):
                record.add_tokens(message.token_count, self.now_s())
                self.trace_run.output_tokens += message.token_count
                if message.finish is not None:
                    record.finish_reason = message.finish.value
                if message.usage is not None:
                    record.preemptions = message.usage.preemptions
                    record.prompt_tokens = message.usage.prompt_tokens
        except CommandError as error:
            record.error = str(error)
        if record.error is None and record.finish_reason in (None, EndReason.ABORT.value):
            record.error = "ended without a finish reason" if record.finish_reason is None else "aborted by the server"
        elif record.error is None and record.output_tokens == 0:
            record.error = "ended without a token"
        self.trace_run.ended += 1
        self.trace_run.failed += record.error is not None

    async def _sample(self) -> None:
        with suppress(CommandError):
            async for status in self._client.watch_status(self._options.sample_interval_s):
                if len(self.trace_run.samples) < MOST_SAMPLES:
                    self.trace_run.samples.append((self.now_s(), status))

    async def _last_status(self, before: ServerStatus) -> tuple[float, ServerStatus]:
        """The time and the status at the end; the last known ones where the server is gone, since the jobs were
        measured all the same.
        """
        try:
            status = await self._settled_status()
        except CommandError as error:
            self.trace_run.lost = str(error)
            return self.trace_run.samples[-1] if self.trace_run.samples else (0.0, before)
        return self.now_s(), status

    async def _settled_status(self) -> ServerStatus:
        """The status once the server has counted the last jobs; it does not wait long for jobs of other clients."""
        limit_s = self.now_s() + SETTLE_LIMIT_S
        async for status in self._client.watch_status(SETTLE_PAUSE_S):
            if not status.jobs or self.now_s() > limit_s:
                return status
        return await self._client.status()
