"""A client of a running gateway: streams to their end, refusals, and what a choice was in all its messages together."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import inference_pb2_grpc
from tests.builders.channels import patient_channel

LIMIT_S = 240.0
"""Far more than anything here takes; it ends a test that hangs."""


@dataclass(slots=True)
class Choice:
    """All messages of one choice, joined."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[api.TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[api.TokenLogprob] = field(default_factory=list)
    finish_reason: int = api.FINISH_REASON_UNSPECIFIED
    request_id: str = ""
    usage: api.Usage | None = None
    """Of the whole request; on the choice whose message came last."""

    def add(self, message: api.GenerateResponse) -> None:
        assert self.finish_reason == api.FINISH_REASON_UNSPECIFIED, "nothing comes after a choice's finish_reason"
        if message.token_ids:
            assert message.first_token_number == len(self.token_ids), "tokens come in order, none lost, none twice"
        self.request_id = message.request_id
        self.token_ids.extend(message.token_ids)
        self.text += message.text
        self.logprobs.extend(message.logprobs)
        self.prompt_logprobs.extend(message.prompt_logprobs)
        self.finish_reason = message.finish_reason
        if message.HasField("usage"):
            self.usage = message.usage


class Client:
    """Calls over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)

    def open(self, request: api.GenerateRequest, timeout: float | None = LIMIT_S) -> Any:
        """A stream that the caller reads."""
        return self.stub.Generate(request, timeout=timeout)

    async def choices(self, request: api.GenerateRequest) -> list[Choice]:
        """Every choice of a request, by index."""
        made: dict[int, Choice] = {}
        async for message in self.open(request):
            made.setdefault(message.index, Choice()).add(message)
        return [made[index] for index in range(len(made))]

    async def one(self, request: api.GenerateRequest) -> Choice:
        """The only choice of a request."""
        (choice,) = await self.choices(request)
        return choice

    async def all(self, requests: Iterable[api.GenerateRequest]) -> list[Choice]:
        """The only choice of each of these requests, sent at once."""
        return list(await asyncio.gather(*(self.one(request) for request in requests)))

    async def refusal(self, request: api.GenerateRequest) -> grpc.aio.AioRpcError:
        """The error of a request that must fail."""
        try:
            await self.choices(request)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("was not refused")


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[Client]:
    """A client of the gateway at this address."""
    async with patient_channel(address) as channel:
        yield Client(channel)
