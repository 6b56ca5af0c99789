"""Open requests whose scheduler is lost: they wait, are submitted again with what they have, and go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer

from fastserve.v1 import inference_pb2 as api
from services.domain.errors import AdmissionFullError, NotReadyError, StreamLostError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.submission import ServingLimits, Submission
from services.gateway import __main__ as gateway_process
from services.gateway import cancelled_requests as leaving
from services.gateway import resubmissions
from services.runtime.error_statuses import from_grpc
from tests.builders.generate_requests import dog_request
from tests.builders.waits import until
from tests.gateway.fake_scheduler_for_gateway import READY, SOON_S, FakeJob, FakeSchedulerForGateway
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.gateway.test_metrics import value
from tests.tracing.memory_tracer import MemoryTracer

NOT_READY = ServingLimits(ready=False, max_model_len=0, device_pool_tokens=0)


class ReadStream:
    """A stream that is read to its end, one way or the other."""

    def __init__(self, gateway: RunningGateway, request: api.GenerateRequest, timeout: float = SOON_S) -> None:
        self.call = gateway.generate(request, timeout)
        self.messages: list[api.GenerateResponse] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            self.messages.append(message)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for message in self.messages for token_id in message.token_ids]

    async def until_tokens(self, count: int) -> None:
        await until(lambda: len(self.token_ids) >= count, SOON_S)

    async def ended(self) -> list[api.GenerateResponse]:
        """All messages. Raises the stream's status."""
        await asyncio.wait_for(self._reading, SOON_S)
        return self.messages

    async def lost(self) -> StreamLostError:
        """How the stream may be resumed."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ended()
        error = from_grpc(caught.value)
        assert isinstance(error, StreamLostError), error
        return error


class Schedulers:
    """The first scheduler of a gateway, and those after it at the same address."""

    def __init__(self) -> None:
        self.now = FakeSchedulerForGateway()

    async def follow(self, limits: ServingLimits = READY) -> FakeSchedulerForGateway:
        """The next one, after the last was stopped."""
        self.now = FakeSchedulerForGateway(limits, self.now.address)
        await self.now.start()
        return self.now


@asynccontextmanager
async def gateway_and_schedulers(
    model: Path, resubmit_limit: float = SOON_S
) -> AsyncIterator[tuple[RunningGateway, Schedulers]]:
    schedulers = Schedulers()
    await schedulers.now.start()
    try:
        async with running_gateway(model, schedulers.now.address, resubmit_limit=resubmit_limit) as gateway:
            yield gateway, schedulers
    finally:
        await schedulers.now.stop()


def as_at_first(submission: Submission) -> Submission:
    """Without what a scheduler is told anew."""
    return replace(
        submission, resume_from_token=0, deadline_in_s=None, output=submission.output[:0], output_logprobs=(), age_s=0.0
    )


def logprob(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, ((token_id, -0.5), (3, -2.0)))


async def test_open_jobs_are_submitted_again_with_what_they_have_and_go_on_from_there(model: Path) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        requests = [dog_request(max_tokens=4, logprobs=1, seed=number) for number in range(3)]
        streams = [ReadStream(gateway, request) for request in requests]
        jobs = [await schedulers.now.next_job() for _ in streams]
        for number, job in enumerate(jobs):
            made = range(10, 10 + number)
            job.send(*made, logprobs=[logprob(token_id) for token_id in made])
        for number, stream in enumerate(streams):
            await stream.until_tokens(number)
        await schedulers.now.stop()
        await gateway.until_health("readiness", "NOT_SERVING")
        following = await schedulers.follow()
        again = [await following.next_job() for _ in streams]
        # In the order in which the requests came, with the same ids, and all that was delivered.
        assert [as_at_first(job.submission) for job in again] == [as_at_first(job.submission) for job in jobs]
        for number, job in enumerate(again):
            told = job.submission
            assert list(told.output) == list(range(10, 10 + number))
            assert list(told.output_logprobs) == [logprob(token_id) for token_id in told.output]
            assert told.resume_from_token == number
            assert told.age_s > 0.0
            rest = range(10 + number, 14)
            job.send(*rest, finish=EndReason.LENGTH, logprobs=[logprob(token_id) for token_id in rest])
        for stream in streams:
            messages = await stream.ended()
            assert stream.token_ids == [10, 11, 12, 13]
            assert [one.token_id for message in messages for one in message.logprobs] == [10, 11, 12, 13]
            assert messages[-1].finish_reason == api.FINISH_REASON_LENGTH
            assert messages[-1].usage.completion_tokens == 4
        metrics = await gateway.metrics()
        assert value(metrics, "generation_tokens_total") == 12
        assert value(metrics, "request_success_total", finished_reason="length") == 3
        # No scheduler saw where all their time went.
        assert value(metrics, "request_queue_time_seconds_count") == 0


async def test_a_scheduler_that_still_has_the_job_is_joined_and_nothing_is_counted_twice_or_left_out(
    model: Path,
) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        stream = ReadStream(gateway, dog_request(max_tokens=3))
        job = await schedulers.now.next_job()
        job.send(10)
        await stream.until_tokens(1)
        schedulers.now.break_streams()
        await until(lambda: len(schedulers.now.hellos) == 2, SOON_S)
        await until(lambda: len(job.streams) == 2, SOON_S)
        job.send(11)
        job.send(12, finish=EndReason.LENGTH)
        await stream.ended()
        assert stream.token_ids == [10, 11, 12]
        assert value(await gateway.metrics(), "generation_tokens_total") == 3


async def test_what_has_no_scheduler_in_time_ends_with_its_id_and_its_next_token(model: Path) -> None:
    async with gateway_and_schedulers(model, resubmit_limit=0.2) as (gateway, schedulers):
        stream = ReadStream(gateway, dog_request(request_id="mine", n=2))
        jobs = [await schedulers.now.next_job() for _ in range(2)]
        jobs[0].send(10, 11, 12)
        jobs[1].send(20, 21)
        await stream.until_tokens(5)
        untouched = ReadStream(gateway, dog_request())
        await schedulers.now.next_job()
        await schedulers.now.stop()
        lost = await stream.lost()
        # Of the choice that is behind: what a repeat sends again has numbers.
        assert (lost.request_id, lost.resume_from_token) == ("mine", 2)
        assert "request_id mine and resume_from_token 2" in str(lost)
        other = await untouched.lost()
        assert other.request_id.startswith("gen-")
        assert other.resume_from_token == 0
        following = await schedulers.follow()
        await gateway.until_health("readiness", "SERVING")
        resumed = ReadStream(gateway, dog_request(request_id="mine", n=2, resume=2))
        for job in [await following.next_job() for _ in range(2)]:
            assert list(job.submission.output) == []
            job.send(30, 31, 32, finish=EndReason.LENGTH)
        assert {(one.index, one.first_token_number) for one in await resumed.ended()} == {(0, 2), (1, 2)}


async def test_nothing_is_submitted_before_the_scheduler_takes_jobs(model: Path) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        stream = ReadStream(gateway, dog_request())
        (await schedulers.now.next_job()).send(10)
        await stream.until_tokens(1)
        await schedulers.now.stop()
        following = await schedulers.follow(NOT_READY)
        await until(lambda: following.hellos, SOON_S)
        await gateway.health("readiness")
        assert not following.jobs
        following.set_limits(READY)
        (await following.next_job()).send(11, finish=EndReason.LENGTH)
        await stream.ended()
        assert stream.token_ids == [10, 11]


async def interrupted(gateway: RunningGateway, schedulers: Schedulers, **fields: Any) -> tuple[ReadStream, FakeJob]:
    """A stream with one token, and its job at the next scheduler."""
    stream = ReadStream(gateway, dog_request(**fields))
    (await schedulers.now.next_job()).send(10)
    await stream.until_tokens(1)
    await schedulers.now.stop()
    return stream, await (await schedulers.follow()).next_job()


@pytest.mark.parametrize(
    "refusal", [AdmissionFullError("full", 0.05), NotReadyError("no worker group has joined", 0.05)]
)
async def test_a_scheduler_that_is_full_or_not_ready_is_asked_again(
    refusal: AdmissionFullError | NotReadyError, model: Path
) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        schedulers.now.keep_jobs = False
        stream, job = await interrupted(gateway, schedulers)
        schedulers.now.keep_jobs = False
        for _ in range(3):
            job.refuse(refusal)
            job = await schedulers.now.next_job()
            assert list(job.submission.output) == [10]
        job.send(11, finish=EndReason.LENGTH)
        await stream.ended()
        assert stream.token_ids == [10, 11]


async def test_a_scheduler_that_is_full_for_longer_than_the_limit_ends_the_stream_to_be_resumed(model: Path) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        stream, job = await interrupted(gateway, schedulers, request_id="mine")
        job.refuse(AdmissionFullError("full", 2 * SOON_S))
        lost = await stream.lost()
        assert (lost.request_id, lost.resume_from_token, lost.retry_after_s) == ("mine", 1, 2 * SOON_S)


async def test_log_probabilities_that_no_message_holds_end_the_stream_to_be_resumed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resubmissions, "MOST_LOGPROBS", 5)
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        requests = [dog_request(logprobs=1, request_id=name) for name in ("small", "large")]
        streams = [ReadStream(gateway, request) for request in requests]
        for made in ((10, 11), (10, 11, 12)):
            job = await schedulers.now.next_job()
            job.send(*made, logprobs=[logprob(token_id) for token_id in made])
        await streams[0].until_tokens(2)
        await streams[1].until_tokens(3)
        await schedulers.now.stop()
        job = await (await schedulers.follow()).next_job()
        assert job.job == "small/0"
        lost = await streams[1].lost()
        assert (lost.request_id, lost.resume_from_token) == ("large", 3)
        job.send(12, finish=EndReason.LENGTH, logprobs=[logprob(12)])
        await streams[0].ended()


async def test_a_client_that_goes_while_there_is_no_scheduler_takes_its_job_with_it(model: Path) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        gone, staying = ReadStream(gateway, dog_request()), ReadStream(gateway, dog_request())
        for _ in range(2):
            await schedulers.now.next_job()
        await schedulers.now.stop()
        await gateway.until_health("readiness", "NOT_SERVING")
        gone.call.cancel()
        async with asyncio.timeout(SOON_S):
            while not value(await gateway.metrics(), "request_success_total", finished_reason="abort"):
                pass
        following = await schedulers.follow()
        (await following.next_job()).send(10, finish=EndReason.LENGTH)
        await staying.ended()
        assert len(following.jobs) == 1


async def test_a_request_that_is_not_submitted_yet_when_the_scheduler_is_lost_waits_for_the_next_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LIMIT_S", SOON_S)
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        # An id whose earlier job still has a last word to come is submitted after that.
        schedulers.now.answers_cancels = False
        earlier = ReadStream(gateway, dog_request(request_id="mine"))
        earlier_job = await schedulers.now.next_job()
        earlier.call.cancel()
        await earlier_job.cancel_reason()
        stream = ReadStream(gateway, dog_request(request_id="mine"))
        other = ReadStream(gateway, dog_request(request_id="other"))
        assert (await schedulers.now.next_job()).job == "other/0"
        await schedulers.now.stop()
        following = await schedulers.follow()
        jobs = {job.job: job for job in [await following.next_job() for _ in range(2)]}
        assert set(jobs) == {"mine/0", "other/0"}
        for job in jobs.values():
            job.send(10, finish=EndReason.LENGTH)
        await asyncio.gather(stream.ended(), other.ended())


async def test_a_deadline_goes_on_while_there_is_no_scheduler(model: Path) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        late = ReadStream(gateway, dog_request(), timeout=2.0)
        stream = ReadStream(gateway, dog_request(), timeout=SOON_S)
        first = {job.job: job for job in [await schedulers.now.next_job() for _ in range(2)]}
        await schedulers.now.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late.ended()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        job = await (await schedulers.follow()).next_job()
        before_s = first[job.job].submission.deadline_in_s
        assert job.submission.deadline_in_s is not None
        assert before_s is not None
        assert 0.5 < before_s - job.submission.deadline_in_s < SOON_S
        job.send(10, finish=EndReason.LENGTH)
        await stream.ended()


async def test_a_choice_that_only_waits_for_its_last_word_ends_when_the_scheduler_is_lost(
    model: Path, tokenizer: Tokenizer
) -> None:
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        schedulers.now.answers_cancels = False
        stream = ReadStream(gateway, dog_request(stop=["dog"]))
        job = await schedulers.now.next_job()
        job.send(*tokenizer.encode("the dog").ids)
        await job.cancel_reason()
        await schedulers.now.stop()
        messages = await stream.ended()
        assert messages[-1].finish_reason == api.FINISH_REASON_STOP


async def test_a_trace_follows_a_job_into_its_second_scheduler_and_no_further(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_process, "open_tracer", lambda *_: MemoryTracer())
    async with gateway_and_schedulers(model) as (gateway, schedulers):
        stream = ReadStream(gateway, dog_request(max_tokens=4))
        contexts = []
        for _ in range(3):
            job = await schedulers.now.next_job()
            contexts.append(job.submission.traceparent)
            if len(contexts) < 3:
                await schedulers.now.stop()
                await gateway.until_health("readiness", "NOT_SERVING")
                await schedulers.follow()
        job.send(1, finish=EndReason.LENGTH)
        await stream.ended()
    first, second, third = contexts
    assert first == second != ""
    assert third == ""
