"""Request ids: joining, resuming, and who may end a job; also clients that go away, and deadlines."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer

from fastserve.v1 import inference_pb2 as api
from services.domain.generation import EndReason
from services.gateway import cancelled_requests as leaving
from services.gateway.service import is_late
from tests.builders.generate_requests import dog_request
from tests.builders.status_details import retry_after_s
from tests.gateway.fake_scheduler_for_gateway import SOON_S
from tests.gateway.running_gateway import Pair, running_gateway, running_pair


async def first(stream: Any) -> api.GenerateResponse:
    message = await asyncio.wait_for(stream.read(), SOON_S)
    assert isinstance(message, api.GenerateResponse), await stream.details()
    return message


async def rest(stream: Any) -> list[api.GenerateResponse]:
    messages = []
    while isinstance(message := await asyncio.wait_for(stream.read(), SOON_S), api.GenerateResponse):
        messages.append(message)
    return messages


def token_ids(messages: list[api.GenerateResponse]) -> list[int]:
    return [token_id for message in messages for token_id in message.token_ids]


async def test_two_clients_of_one_request_both_get_everything(pair: Pair) -> None:
    gateway, scheduler = pair
    one = gateway.generate(dog_request(request_id="shared"))
    job = await scheduler.next_job()
    job.send(5)
    job.send(6)
    seen = [await first(one)]
    other = gateway.generate(dog_request(request_id="shared"))
    joined = [await first(other)]
    job.send(7, finish=EndReason.LENGTH)
    seen += await rest(one)
    joined += await rest(other)
    assert token_ids(seen) == token_ids(joined) == [5, 6, 7]
    assert "".join(message.text for message in seen) == "".join(message.text for message in joined)
    assert seen[-1].usage == joined[-1].usage
    assert joined[0].request_id == "shared"
    assert scheduler.waiting_jobs == 0


async def test_a_client_that_resumes_gets_tokens_and_text_from_there(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    whole = gateway.generate(dog_request(request_id="resumed"))
    job = await scheduler.next_job()
    ids = tokenizer.encode(" the lazy dog").ids
    job.send(*ids[:2])
    await first(whole)
    resumed = gateway.generate(dog_request(request_id="resumed", resume=1))
    message = await first(resumed)
    assert (message.first_token_number, list(message.token_ids)) == (1, ids[1:2])
    job.send(*ids[2:], finish=EndReason.LENGTH)
    later = await rest(resumed)
    assert message.text + "".join(one.text for one in later) == tokenizer.decode(ids[1:])
    assert later[-1].usage.completion_tokens == len(ids)


async def test_a_finished_request_is_replayed_from_the_scheduler(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    ids = tokenizer.encode(" the lazy dog sleeps").ids
    scheduler.script = lambda _: ids
    before = await gateway.collect(dog_request(request_id="again", stop=["dog"]))
    after = await gateway.collect(dog_request(request_id="again", stop=["dog"]))
    resumed = await gateway.collect(dog_request(request_id="again", resume=2, stop=["dog"]))
    assert token_ids(before) == token_ids(after) == [*ids[:2], *token_ids(resumed)]
    assert "".join(one.text for one in before) == "".join(one.text for one in after) == " the lazy "
    assert len(scheduler.jobs) == 1


async def test_a_repeat_without_a_seed_asks_for_the_same_seed_and_a_fresh_id_for_another(pair: Pair) -> None:
    gateway, scheduler = pair
    scheduler.keep_jobs = False
    seeds = []
    for request_id in ("same", "same", "", ""):
        collecting = asyncio.create_task(gateway.collect(dog_request(request_id=request_id)))
        job = await scheduler.next_job()
        seeds.append(job.submission.sampling.seed)
        job.send(5, finish=EndReason.LENGTH)
        await collecting
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3


async def test_a_known_id_with_another_body_is_refused_and_disturbs_nobody(pair: Pair) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(request_id="taken"))
    job = await scheduler.next_job()
    job.send(5)
    await first(stream)
    others = [
        dog_request(request_id="taken", text="another"),
        dog_request(request_id="taken", seed=3),
        dog_request(request_id="taken", n=2),
        dog_request(request_id="taken", stop=["x"]),
    ]
    for other in others:
        assert (await gateway.refusal(other)).code() is grpc.StatusCode.ALREADY_EXISTS
    job.send(6, finish=EndReason.LENGTH)
    assert token_ids(await rest(stream)) == [6]


async def test_an_id_known_to_the_scheduler_with_another_body_is_refused_and_not_cancelled(
    model: Path, pair: Pair
) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(request_id="elsewhere", n=2))
    jobs = [await scheduler.next_job() for _ in range(2)]
    async with running_gateway(model, scheduler.address) as second:
        error = await second.refusal(dog_request(request_id="elsewhere", text="another", n=2))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    for job in jobs:
        job.send(5, finish=EndReason.LENGTH)
    assert len(token_ids(await rest(stream))) == 2
    assert not any(job.cancelled.done() for job in jobs)


async def test_an_id_reused_with_more_choices_leaves_no_job_running_and_is_free_when_they_are_gone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, scheduler = pair
    monkeypatch.setattr(leaving, "LIMIT_S", SOON_S)
    scheduler.answers_cancels = False
    once = asyncio.create_task(gateway.collect(dog_request(request_id="dup", n=1)))
    (await scheduler.next_job()).send(5, finish=EndReason.LENGTH)
    await once
    error = await gateway.refusal(dog_request(request_id="dup", n=3))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    scheduler.keep_jobs = False
    again = asyncio.create_task(gateway.collect(dog_request(request_id="dup", n=2)))
    new = [await scheduler.next_job() for _ in range(2)]
    assert [job.job for job in new] == ["dup/1", "dup/2"]
    assert [await job.cancel_reason() for job in new] == [EndReason.CANCELLED] * 2
    other = gateway.generate(dog_request(request_id="other"))
    assert (await scheduler.next_job()).job == "other/0"
    other.cancel()
    for job in new:
        job.send(finish=EndReason.ABORT)
    for _ in range(2):
        (await scheduler.next_job()).send(6, finish=EndReason.LENGTH)
    assert token_ids(await again) == [6, 6]


async def test_the_model_s_name_may_be_left_out_of_a_repeat(pair: Pair) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(request_id="named"))
    job = await scheduler.next_job()
    named = dog_request(request_id="named")
    named.model = "tiny"
    other = gateway.generate(named)
    job.send(5, finish=EndReason.LENGTH)
    assert token_ids(await rest(stream)) == token_ids(await rest(other)) == [5]


async def test_a_client_that_goes_away_cancels_its_jobs_at_once(pair: Pair) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(n=2))
    jobs = [await scheduler.next_job() for _ in range(2)]
    jobs[0].send(5)
    await first(stream)
    stream.cancel()
    assert [await job.cancel_reason() for job in jobs] == [EndReason.CANCELLED] * 2


async def test_a_choice_that_ended_already_is_not_cancelled(pair: Pair) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(n=2))
    done, running = await scheduler.next_job(), await scheduler.next_job()
    done.send(5, finish=EndReason.LENGTH)
    await first(stream)
    stream.cancel()
    assert await running.cancel_reason() is EndReason.CANCELLED
    assert not done.cancelled.done()


async def test_the_scheduler_is_told_the_deadline_and_the_job_is_cancelled_when_it_passes(pair: Pair) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(), timeout=1.5)
    job = await scheduler.next_job()
    assert job.submission.deadline_in_s is not None
    assert 0 < job.submission.deadline_in_s < 1.6  # gRPC rounds timeouts up
    # Two timers run, the client's and the gateway's, and on a busy machine the client's hang-up may come well first.
    assert await job.cancel_reason() in (EndReason.DEADLINE, EndReason.CANCELLED)
    assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_hang_up_within_a_hundredth_of_the_deadline_counts_as_the_deadline() -> None:
    assert is_late(10.0, 0.0)
    assert is_late(10.0, 0.1)
    assert is_late(0.5, 0.05)
    assert not is_late(10.0, 0.2)
    assert not is_late(None, None)


async def test_the_job_goes_on_until_its_last_listener_has_left(pair: Pair) -> None:
    gateway, scheduler = pair
    one = gateway.generate(dog_request(request_id="pair"))
    job = await scheduler.next_job()
    job.send(5)
    await first(one)
    two = gateway.generate(dog_request(request_id="pair"))
    await first(two)
    one.cancel()
    job.send(6)
    assert token_ids([await first(two)]) == [6]
    assert not job.cancelled.done()
    two.cancel()
    assert await job.cancel_reason() is EndReason.CANCELLED


async def test_the_deadline_of_one_listener_does_not_end_the_other_s_job(pair: Pair) -> None:
    gateway, scheduler = pair
    one = gateway.generate(dog_request(request_id="timed"), timeout=2.0)
    job = await scheduler.next_job()
    assert job.submission.deadline_in_s is None
    two = gateway.generate(dog_request(request_id="timed"))
    job.send(5)
    await first(two)
    assert await one.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    job.send(6, finish=EndReason.LENGTH)
    assert token_ids(await rest(two)) == [6]


async def test_the_last_update_on_a_cancelled_job_does_not_end_its_successor(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, scheduler = pair
    monkeypatch.setattr(leaving, "LIMIT_S", SOON_S)
    scheduler.answers_cancels = scheduler.keep_jobs = False
    stream = gateway.generate(dog_request(request_id="back"))
    job = await scheduler.next_job()
    job.send(5)
    await first(stream)
    stream.cancel()
    assert await job.cancel_reason() is EndReason.CANCELLED
    again = gateway.generate(dog_request(request_id="back"))
    other = gateway.generate(dog_request(request_id="other"))
    assert (await scheduler.next_job()).job == "other/0"
    other.cancel()
    job.send(finish=EndReason.ABORT)
    successor = await scheduler.next_job()
    assert successor.job == job.job
    successor.send(7, finish=EndReason.LENGTH)
    (message,) = await rest(again)
    assert (list(message.token_ids), message.finish_reason) == ([7], api.FINISH_REASON_LENGTH)


async def test_a_client_that_leaves_while_its_long_text_is_tokenized_leaves_no_job(pair: Pair) -> None:
    gateway, scheduler = pair
    text = "the lazy dog sleeps, " * 60
    gateway.generate(dog_request(text=text, max_tokens=1)).cancel()
    collecting = asyncio.create_task(gateway.collect(dog_request(text=text, max_tokens=2)))
    while (job := await scheduler.next_job()).submission.sampling.max_tokens == 1:
        pass
    job.send(5, finish=EndReason.LENGTH)
    await collecting
    for other in list(scheduler.jobs.values()):
        assert other is job or await other.cancel_reason() is EndReason.CANCELLED


async def test_more_open_requests_than_the_gateway_takes_are_refused_with_a_time_to_wait(model: Path) -> None:
    async with running_pair(model, max_open_requests=1) as (gateway, scheduler):
        stream = gateway.generate(dog_request())
        job = await scheduler.next_job()
        error = await gateway.refusal(dog_request())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_after_s(error) > 0
        job.send(5, finish=EndReason.LENGTH)
        await rest(stream)
