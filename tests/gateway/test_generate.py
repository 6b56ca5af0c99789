"""Generate over real sockets: tokens as they are made, text, choices, usage, and how streams end."""

import asyncio

import grpc
import pytest
from tokenizers import Tokenizer

from fastserve.v1 import inference_pb2 as api
from services.domain.errors import AdmissionFullError, InvalidFieldError, NotReadyError
from services.domain.generation import EndReason, TokenLogprob
from services.domain.job_sampling import JobSampling
from services.domain.submission import client_number_of
from services.wire.gateway_scheduler import submission_to_wire
from tests.builders.generate_requests import dog_request
from tests.builders.status_details import retry_after_s, violated_field
from tests.gateway.fake_scheduler_for_gateway import SOON_S, TIMINGS
from tests.gateway.running_gateway import Pair


async def next_message(stream: grpc.aio.UnaryStreamCall) -> api.GenerateResponse:  # type: ignore[type-arg]
    message = await asyncio.wait_for(stream.read(), SOON_S)
    assert isinstance(message, api.GenerateResponse)
    return message


async def test_each_token_reaches_the_client_before_the_next_one_is_made(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request())
    job = await scheduler.next_job()
    for number, token_id in enumerate(tokenizer.encode(" jumps over").ids):
        job.send(token_id)
        message = await next_message(stream)
        assert (message.first_token_number, list(message.token_ids)) == (number, [token_id])
        assert message.text == tokenizer.decode([token_id])
        assert message.finish_reason == api.FINISH_REASON_UNSPECIFIED


async def test_the_prompt_is_tokenized_and_defaults_are_resolved(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(api.GenerateRequest(model="tiny", text="the dog"))
    submission = (await scheduler.next_job()).submission
    assert list(submission.prompt) == tokenizer.encode("the dog").ids
    expected = JobSampling(max_tokens=16, seed=submission.sampling.seed, stop_token_ids=(0,))
    assert submission.sampling == expected
    assert submission.job_id.endswith("/0")
    stream.cancel()


async def test_every_sampling_field_reaches_the_scheduler(pair: Pair) -> None:
    gateway, scheduler = pair
    asked = dog_request(
        max_tokens=7, min_tokens=2, temperature=0.5, top_p=0.25, top_k=3, min_p=0.125, presence_penalty=-1.5,
        frequency_penalty=1.5, repetition_penalty=2.0, seed=-5, stop_token_ids=[9, 8, 9], ignore_eos=True, logprobs=4,
        logit_bias={5: 1.5, 3: -2.0}, n=2,
    )  # fmt: skip
    stream = gateway.generate(asked)
    submissions = [(await scheduler.next_job()).submission for _ in range(2)]
    for choice, submission in enumerate(submissions):
        assert submission.sampling == JobSampling(
            max_tokens=7, seed=-5, choice=choice, min_tokens=2, temperature=0.5, top_p=0.25, top_k=3, min_p=0.125,
            presence_penalty=-1.5, frequency_penalty=1.5, repetition_penalty=2.0, stop_token_ids=(9, 8), logprobs=4,
            logit_bias=((3, -2.0), (5, 1.5)),
        )  # fmt: skip
    stream.cancel()


async def test_the_scheduler_gets_a_number_for_the_client_and_not_its_name(pair: Pair) -> None:
    gateway, scheduler = pair
    for client in ("alice@example.org", ""):
        asked = dog_request(n=2)
        asked.client = client
        stream = gateway.generate(asked)
        submissions = [(await scheduler.next_job()).submission for _ in range(2)]
        assert [one.client_number for one in submissions] == [client_number_of(client)] * 2
        assert all(b"alice" not in submission_to_wire(one).SerializeToString() for one in submissions)
        stream.cancel()


async def test_token_ids_are_used_as_they_are(pair: Pair) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(api.GenerateRequest(token_ids=api.TokenIds(ids=[5, 0, 399])))
    assert list((await scheduler.next_job()).submission.prompt) == [5, 0, 399]
    stream.cancel()


@pytest.mark.parametrize(
    ("finish", "told"),
    [
        (EndReason.LENGTH, api.FINISH_REASON_LENGTH),
        (EndReason.STOP, api.FINISH_REASON_STOP),
        (EndReason.ABORT, api.FINISH_REASON_ABORT),
    ],
)
async def test_the_last_message_has_the_finish_reason_and_the_usage(
    pair: Pair, tokenizer: Tokenizer, finish: EndReason, told: int
) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(dog_request()))
    job = await scheduler.next_job()
    token_ids = tokenizer.encode(" lazy dog").ids
    job.send(*token_ids[:1])
    job.send(*token_ids[1:], finish=finish)
    messages = await collecting
    last = messages[-1]
    prompt_tokens = len(tokenizer.encode("the dog").ids)
    assert last.finish_reason == told
    assert last.usage == api.Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=len(token_ids),
        total_tokens=prompt_tokens + len(token_ids),
        preemptions=TIMINGS.preemptions,
    )
    assert not any(message.HasField("usage") for message in messages[:-1])
    assert "".join(message.text for message in messages) == " lazy dog"


async def test_a_stop_token_is_among_the_tokens_but_not_in_the_text(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    (dog,) = tokenizer.encode(" dog").ids
    collecting = asyncio.create_task(gateway.collect(dog_request(stop_token_ids=[dog])))
    job = await scheduler.next_job()
    token_ids = [*tokenizer.encode(" lazy").ids, dog]
    job.send(*token_ids, finish=EndReason.STOP)
    (message,) = await collecting
    assert list(message.token_ids) == token_ids
    assert message.text == " lazy"


async def test_the_end_of_sequence_token_shows_no_text(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(dog_request(ignore_eos=True)))
    job = await scheduler.next_job()
    job.send(0, *tokenizer.encode(" dog").ids, 0, finish=EndReason.LENGTH)
    (message,) = await collecting
    assert message.text == " dog"
    assert list(message.token_ids) == [0, *tokenizer.encode(" dog").ids, 0]


async def test_half_a_character_is_held_back_until_it_is_whole(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    vocabulary = tokenizer.get_vocab()
    pieces = [vocabulary[character] for character in ("ð", "Ł", "ĺ", "Ģ")]  # the bytes of U+1F600
    stream = gateway.generate(dog_request())
    job = await scheduler.next_job()
    texts = []
    for token_id in pieces:
        job.send(token_id)
        texts.append((await next_message(stream)).text)
    assert texts == ["", "", "", "😀"]
    job.send(pieces[0], finish=EndReason.LENGTH)
    assert (await next_message(stream)).text == "\N{REPLACEMENT CHARACTER}"


async def test_choices_are_merged_into_one_stream(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(dog_request(n=3)))
    jobs = [await scheduler.next_job() for _ in range(3)]
    assert [job.job.rpartition("/")[2] for job in jobs] == ["0", "1", "2"]
    assert len({job.job.rpartition("/")[0] for job in jobs}) == 1
    texts = [" the", " quick", " brown"]
    for number, job in enumerate(reversed(jobs)):
        job.send(*tokenizer.encode(texts[number]).ids)
    for job in jobs:
        job.send(finish=EndReason.LENGTH)
    messages = await collecting
    for index, expected in enumerate(reversed(texts)):
        own = [message for message in messages if message.index == index]
        assert "".join(message.text for message in own) == expected
        assert [message.finish_reason for message in own][-1] == api.FINISH_REASON_LENGTH
        assert all(message.finish_reason == 0 for message in own[:-1])
    assert messages[-1].usage.completion_tokens == sum(len(tokenizer.encode(text).ids) for text in texts)
    assert messages[-1].usage.preemptions == 3 * TIMINGS.preemptions
    assert sum(message.HasField("usage") for message in messages) == 1


async def test_logprobs_come_with_their_tokens(pair: Pair) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(dog_request(logprobs=2)))
    job = await scheduler.next_job()
    job.send(7, logprobs=[TokenLogprob(7, -0.5, ((7, -0.5), (9, -1.5)))])
    job.send(8, logprobs=[TokenLogprob(8, -2.0, ((9, -0.25), (8, -2.0)))], finish=EndReason.LENGTH)
    logprobs = [one for message in await collecting for one in message.logprobs]
    assert [(one.token_id, one.logprob) for one in logprobs] == [(7, -0.5), (8, -2.0)]
    assert [(one.token_id, one.logprob) for one in logprobs[1].top] == [(9, -0.25), (8, -2.0)]


@pytest.mark.parametrize("stop", ["zy d", "y", " lazy dog", "g"])
async def test_a_stop_string_across_tokens_ends_choice_and_job(pair: Pair, tokenizer: Tokenizer, stop: str) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(dog_request(stop=["never seen", stop])))
    job = await scheduler.next_job()
    text = "over the lazy dog sleeps"
    sent = 0
    for token_id in tokenizer.encode(text).ids:
        job.send(token_id)
        sent += 1
    assert await job.cancel_reason() is EndReason.STOP
    messages = await collecting
    assert "".join(message.text for message in messages) == text[: text.index(stop)]
    assert messages[-1].finish_reason == api.FINISH_REASON_STOP
    token_ids = [token_id for message in messages for token_id in message.token_ids]
    assert stop in tokenizer.decode(token_ids)
    assert stop not in tokenizer.decode(token_ids[:-1])
    assert messages[-1].usage.completion_tokens == len(token_ids) < sent
    assert messages[-1].usage.preemptions == TIMINGS.preemptions


async def test_text_that_only_began_a_stop_string_is_shown_after_all(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    stream = gateway.generate(dog_request(stop=[" dogs"]))
    job = await scheduler.next_job()
    (dog,) = tokenizer.encode(" dog").ids
    job.send(dog)
    assert (await next_message(stream)).text == ""
    job.send(finish=EndReason.LENGTH)
    last = await next_message(stream)
    assert (last.text, list(last.token_ids)) == (" dog", [])
    assert last.finish_reason == api.FINISH_REASON_LENGTH


async def test_a_stop_string_before_min_tokens_is_ignored(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    (dog,) = tokenizer.encode(" dog").ids
    collecting = asyncio.create_task(gateway.collect(dog_request(stop=[" dog"], min_tokens=2)))
    job = await scheduler.next_job()
    job.send(dog)
    job.send(dog)
    job.send(dog)
    assert await job.cancel_reason() is EndReason.STOP
    assert "".join(message.text for message in await collecting) == " dog dog"


async def test_admission_refused_by_the_scheduler_is_resource_exhausted_with_a_time_to_wait(pair: Pair) -> None:
    gateway, scheduler = pair
    refused = asyncio.create_task(gateway.refusal(dog_request()))
    (await scheduler.next_job()).refuse(AdmissionFullError("20000 jobs are queued", 2.5))
    error = await refused
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_after_s(error) == 2.5


async def test_one_refused_choice_ends_the_request_and_cancels_the_others(pair: Pair) -> None:
    gateway, scheduler = pair
    refused = asyncio.create_task(gateway.refusal(dog_request(n=2)))
    first, second = await scheduler.next_job(), await scheduler.next_job()
    second.refuse(AdmissionFullError("full", 1.0))
    assert (await refused).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await first.cancel_reason() is EndReason.CANCELLED
    assert not second.cancelled.done()


async def test_a_field_that_the_scheduler_refuses_is_named(pair: Pair) -> None:
    gateway, scheduler = pair
    refused = asyncio.create_task(gateway.refusal(dog_request()))
    (await scheduler.next_job()).refuse(InvalidFieldError("sampling.max_tokens", "is too much for the pool"))
    assert violated_field(await refused) == "sampling.max_tokens"


async def test_a_worker_group_that_is_not_ready_is_unavailable_with_a_time_to_wait(pair: Pair) -> None:
    gateway, scheduler = pair
    refused = asyncio.create_task(gateway.refusal(dog_request()))
    (await scheduler.next_job()).refuse(NotReadyError("no worker", 0.5))
    error = await refused
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert retry_after_s(error) == 0.5


async def test_a_long_text_is_tokenized_and_streams_like_a_short_one(pair: Pair, tokenizer: Tokenizer) -> None:
    gateway, scheduler = pair
    text = "the lazy dog sleeps, " * 60
    collecting = asyncio.create_task(gateway.collect(dog_request(text, max_tokens=1)))
    job = await scheduler.next_job()
    assert list(job.submission.prompt) == tokenizer.encode(text).ids
    job.send(5, finish=EndReason.LENGTH)
    (message,) = await collecting
    assert message.usage.prompt_tokens == len(tokenizer.encode(text).ids)


async def test_a_slow_client_gets_every_token_once(pair: Pair) -> None:
    gateway, scheduler = pair
    token_ids = [number % 400 for number in range(300)]
    scheduler.script = lambda submission: token_ids
    stream = gateway.generate(
        api.GenerateRequest(token_ids=api.TokenIds(ids=[1]), sampling=api.SamplingParams(max_tokens=300))
    )
    messages = []
    while isinstance(message := await asyncio.wait_for(stream.read(), SOON_S), api.GenerateResponse):
        messages.append(message)
    assert [token_id for message in messages for token_id in message.token_ids] == token_ids
    numbers = [message.first_token_number for message in messages if message.token_ids]
    assert numbers == sorted(set(numbers))
