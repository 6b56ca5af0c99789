"""Log probabilities of the prompt over gRPC: before the output, or alone."""

import asyncio
from array import array
from collections.abc import Callable

import grpc
import pytest

from fastserve.v1 import inference_pb2 as api
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.domain.prompt_logprobs import PromptLogprobs
from services.domain.submission import JobUpdate
from services.gateway.generation.choice_output import ChoiceOutput, Cursor
from services.gateway.generation.detokenizer import BytesDetokenizer
from services.wire.client_gateway import piece_from_wire
from tests.builders.generate_requests import dog_request, ids_request
from tests.gateway.fake_scheduler_for_gateway import FakeJob, prompt_score
from tests.gateway.running_gateway import Pair
from tests.gateway.test_metrics import value

PROMPT = [60, 61, 62, 63, 64]


def expected(alternatives: int, first: int = 1) -> list[TokenLogprob]:
    scores = [(position, prompt_score(PROMPT, position, alternatives)) for position in range(first, len(PROMPT))]
    return [TokenLogprob(PROMPT[position], own, tuple(top)) for position, (own, top) in scores]


def of_prompt(messages: list[api.GenerateResponse]) -> list[TokenLogprob]:
    return [one for message in messages for one in piece_from_wire(message).piece.prompt_logprobs]


async def test_they_come_before_the_output_as_they_are_found(pair: Pair) -> None:
    gateway, scheduler = pair
    collecting = asyncio.create_task(gateway.collect(ids_request(PROMPT, prompt_logprobs=2, max_tokens=2)))
    job = await scheduler.next_job()
    assert job.submission.sampling.prompt_logprobs == 2
    job.send_prompt(1, 3)
    job.send_prompt(2)
    job.send(50, 51, finish=EndReason.LENGTH)
    messages = await collecting
    assert of_prompt(messages) == expected(2)
    firsts = [bool(message.prompt_logprobs) for message in messages]
    assert firsts == sorted(firsts, reverse=True), "all of the prompt's come first"
    assert not any(message.prompt_logprobs and message.token_ids for message in messages)
    assert [token_id for message in messages for token_id in message.token_ids] == [50, 51]


async def test_a_prompt_alone_has_no_output(pair: Pair) -> None:
    gateway, scheduler = pair
    asked = ids_request(PROMPT, prompt_logprobs=0, max_tokens=0, stop=["x"], n=2)
    collecting = asyncio.create_task(gateway.collect(asked))
    for _ in range(2):
        job = await scheduler.next_job()
        job.send_prompt()
        job.send(50, finish=EndReason.LENGTH)
    messages = await collecting
    assert of_prompt(messages) == expected(0) * 2
    assert not any(message.token_ids or message.text for message in messages)
    last = [message.finish_reason for message in messages if message.finish_reason]
    assert last == [api.FINISH_REASON_LENGTH] * 2
    usage = messages[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 0, 5)
    metrics = await gateway.metrics()
    counted = [value(metrics, name) for name in ("prompt_tokens_total", "generation_tokens_total")]
    assert counted == [5, 0]


def test_a_stream_that_is_resumed_behind_the_first_token_has_had_them() -> None:
    sampling = JobSampling(max_tokens=2, seed=0, prompt_logprobs=0)
    output = ChoiceOutput(sampling, BytesDetokenizer(lambda _: b"x"), (), PROMPT)
    part = PromptLogprobs(1, array("f", [-1.0, -2.0, -3.0, -4.0]), array("I"), array("f"))
    assert output.take(JobUpdate(JobId("a/0"), 0, (), (), prompt_logprobs=part)) == 0
    assert output.take(JobUpdate(JobId("a/0"), 0, (50, 51), ())) == 2
    first: list[list[float]] = []
    token_ids: list[list[int]] = []
    for from_token in (0, 1):
        piece = Cursor(0, output, from_token).take()
        assert piece is not None
        first.append([one.logprob for one in piece.prompt_logprobs])
        token_ids.append(list(piece.token_ids))
    assert first == [[-1.0, -2.0, -3.0, -4.0], []]
    assert token_ids == [[], [51]]


def lose_all(job: FakeJob) -> None:
    job.send(50)


def lose_the_first(job: FakeJob) -> None:
    job.send_prompt(2)


def lose_the_last(job: FakeJob) -> None:
    job.send_prompt(1, 4)
    job.send(finish=EndReason.LENGTH)


@pytest.mark.parametrize("lose", [lose_all, lose_the_first, lose_the_last])
async def test_output_before_all_of_them_is_a_bug(lose: Callable[[FakeJob], None], pair: Pair) -> None:
    gateway, scheduler = pair
    refusing = asyncio.create_task(gateway.refusal(ids_request(PROMPT, prompt_logprobs=1, max_tokens=2)))
    lose(await scheduler.next_job())
    assert (await refusing).code() is grpc.StatusCode.INTERNAL


async def test_max_tokens_0_needs_them(pair: Pair) -> None:
    refused = await pair[0].refusal(dog_request(max_tokens=0))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
