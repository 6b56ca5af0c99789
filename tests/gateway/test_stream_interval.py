"""`--stream-interval`: a client gets a choice's first token at once, the others so many at a time, and never too few at
its end.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer

from fastserve.v1 import inference_pb2 as api
from services.domain.errors import NotReadyError
from services.domain.generation import EndReason
from tests.builders.generate_requests import dog_request
from tests.gateway.fake_scheduler_for_gateway import FakeJob
from tests.gateway.running_gateway import Pair, running_pair
from tests.gateway.test_requests import first, rest, token_ids


@pytest.fixture
async def pair(model: Path) -> AsyncIterator[Pair]:
    async with running_pair(model, stream_interval=3) as pair:
        yield pair


async def opened(pair: Pair, **fields: Any) -> tuple[Any, FakeJob]:
    gateway, scheduler = pair
    return gateway.generate(dog_request(**fields)), await scheduler.next_job()


async def all_said_is_heard(pair: Pair) -> None:
    """The gateway hears its scheduler in order, so it has heard what was said before another job's end."""
    stream, job = await opened(pair)
    job.send(5, finish=EndReason.LENGTH)
    await rest(stream)


async def told_one_by_one(pair: Pair, job: FakeJob, *tokens: int) -> None:
    for token_id in tokens:
        job.send(token_id)
        await all_said_is_heard(pair)


def sizes(messages: list[api.GenerateResponse]) -> list[int]:
    return [len(message.token_ids) for message in messages]


async def test_tokens_after_the_first_come_as_many_at_a_time(pair: Pair, tokenizer: Tokenizer) -> None:
    stream, job = await opened(pair)
    ids = tokenizer.encode(" the quick brown fox jumps over the lazy dog").ids[:9]
    await told_one_by_one(pair, job, *ids[:8])
    job.send(ids[8], finish=EndReason.LENGTH)
    messages = await rest(stream)
    assert sizes(messages) == [1, 3, 3, 2]
    assert token_ids(messages) == ids
    assert "".join(message.text for message in messages) == tokenizer.decode(ids)
    assert messages[-1].usage.completion_tokens == 9


async def test_who_resumes_gets_the_next_token_at_once(pair: Pair) -> None:
    _, job = await opened(pair, request_id="resumed")
    await told_one_by_one(pair, job, 5, 6)
    resumed = pair[0].generate(dog_request(request_id="resumed", resume=1))
    assert token_ids([await first(resumed)]) == [6]
    await told_one_by_one(pair, job, 7, 8)
    job.send(9, finish=EndReason.LENGTH)
    assert sizes(await rest(resumed)) == [3]


async def test_what_waits_comes_before_an_error(pair: Pair) -> None:
    stream, job = await opened(pair)
    await told_one_by_one(pair, job, 5, 6, 7)
    job.refuse(NotReadyError("the worker is gone"))
    assert sizes([await first(stream), await first(stream)]) == [1, 2]
    with pytest.raises(grpc.aio.AioRpcError, match="the worker is gone"):
        await stream.read()


async def test_what_waits_comes_when_a_stop_string_is_found(pair: Pair, tokenizer: Tokenizer) -> None:
    stream, job = await opened(pair, stop=["brown"])
    await told_one_by_one(pair, job, *tokenizer.encode(" the quick brown").ids)
    messages = await rest(stream)
    assert "".join(message.text for message in messages) == " the quick "
    assert messages[-1].finish_reason == api.FINISH_REASON_STOP
