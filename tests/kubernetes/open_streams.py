"""Streams that are open while something happens to the cluster: what became of each, and its longest pause."""

import asyncio
import threading
import time
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import inference_pb2_grpc as rpc
from tests.kubernetes.machine import wait_for

PROMPTS = ("def main", "class Server:", "import os\n", "for name in names:", "while True:\n    ")
STREAM_LIMIT_S = 240.0
FLOW_LIMIT_S = 60.0


@dataclass
class OpenStream:
    """One greedy stream. `failure` is empty when it came to its end; `resumed` counts how often it was taken up again
    with its id and the number of its next token, as a client does whose gateway has gone.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    longest_pause_s: float = 0.0
    resumed: int = 0
    failure: str = "has not ended"


class OpenStreams:
    """As many streams as asked for, of so many tokens each, over the gateways in turn. A context: all end in it."""

    def __init__(
        self, addresses: list[str], count: int, token_count: int, resumes: bool = False, waits: bool = False
    ) -> None:
        """`resumes`: streams that end with UNAVAILABLE are taken up again. `waits`: no tokens come before what is done
        in the context.
        """
        self._addresses, self._token_count, self._resumes, self._waits = addresses, token_count, resumes, waits
        # No other streams may have these ids: they would be given what was made before.
        self._name = uuid.uuid4().hex
        self.streams = [OpenStream(number) for number in range(count)]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)

    def __enter__(self) -> "OpenStreams":
        self._thread.start()
        if not self._waits:
            wait_for(
                lambda: all(stream.tokens or self._over(stream) for stream in self.streams), "tokens", FLOW_LIMIT_S
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.join(STREAM_LIMIT_S)

    @staticmethod
    def _over(stream: OpenStream) -> bool:
        return stream.failure != "has not ended"

    @property
    def open_count(self) -> int:
        return sum(not self._over(stream) for stream in self.streams)

    async def _all(self) -> None:
        channels = [grpc.aio.insecure_channel(address) for address in self._addresses]
        stubs: list[Any] = [rpc.InferenceServiceStub(channel) for channel in channels]
        await asyncio.gather(*(self._one(stubs, stream) for stream in self.streams))
        for channel in channels:
            await channel.close()

    async def _one(self, stubs: list[Any], stream: OpenStream) -> None:
        prompt = f"# {stream.number}\n{PROMPTS[stream.number % len(PROMPTS)]}"
        how = api.SamplingParams(max_tokens=self._token_count, ignore_eos=True, temperature=0.0)
        name = f"{self._name}-{stream.number}"
        end_s = time.monotonic() + STREAM_LIMIT_S
        last_s = time.monotonic()
        for attempt in range(1000):
            request = api.GenerateRequest(text=prompt, request_id=name, sampling=how)
            if stream.tokens:
                request.resume_from_token = len(stream.tokens)
            try:
                call = stubs[(stream.number + attempt) % len(stubs)].Generate(request, timeout=end_s - time.monotonic())
                async for message in call:
                    now_s = time.monotonic()
                    if stream.tokens:
                        stream.longest_pause_s = max(stream.longest_pause_s, now_s - last_s)
                    last_s = now_s
                    stream.tokens += message.token_ids
                stream.failure = ""
                return
            except grpc.aio.AioRpcError as error:
                if not self._resumes or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    stream.failure = f"{error.code().name}: {error.details()}"
                    return
                stream.resumed += 1
                await asyncio.sleep(0.2)
        stream.failure = "was taken up again too often"


@dataclass(frozen=True, slots=True)
class StreamsOutcome:
    """Of many streams together; `wrong` had other tokens than undisturbed ones, or another number of them."""

    count: int
    failed: int
    wrong: int
    resumed: int
    longest_pause_s: float
    example: str

    @property
    def is_whole(self) -> bool:
        return not self.failed and not self.wrong

    def __str__(self) -> str:
        text = f"{self.count} streams, {self.failed} failed, {self.wrong} with other tokens"
        text += f", {self.resumed} taken up again by the client" if self.resumed else ""
        return f"{text}, longest pause {self.longest_pause_s:.1f} s" + (f" ({self.example})" if self.example else "")


def outcome_of(streams: list[OpenStream], undisturbed: list[OpenStream], token_count: int) -> StreamsOutcome:
    """Compared with the same prompts, served while nothing happened, whose outputs may be longer."""
    failures = [stream.failure for stream in streams if stream.failure]
    wrong = [
        stream.number
        for stream, before in zip(streams, undisturbed, strict=False)
        if not stream.failure and stream.tokens != before.tokens[:token_count]
    ]
    return StreamsOutcome(
        count=len(streams),
        failed=len(failures),
        wrong=len(wrong),
        resumed=sum(bool(stream.resumed) for stream in streams),
        longest_pause_s=max(stream.longest_pause_s for stream in streams),
        example=failures[0] if failures else "",
    )
