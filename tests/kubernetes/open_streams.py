"""Streams that are open while something happens to the cluster: what became of each, and its longest pause."""

import asyncio
import math
import threading
import time
import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any

import grpc

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import inference_pb2_grpc as rpc
from tests.kubernetes.machine import wait_for

PROMPTS = ("def main", "class Server:", "import os\n", "for name in names:", "while True:\n    ")
STREAMS, TOKENS = 60, 300
STREAM_LIMIT_S = 240.0
CONNECTIONS = 4
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Behind one address there are several gateways."""
FLOW_LIMIT_S = 60.0
AGAIN_S = 0.2
HELD_S = 0.05


@dataclass(frozen=True, slots=True)
class Window:
    """From one moment to another; both are seconds of time.monotonic()."""

    began_s: float = -math.inf
    ended_s: float = math.inf

    def longest_gap_s(self, moments_s: list[float]) -> float:
        """Of the times between two of these moments that follow each other, the longest that reaches into it."""
        found = (
            later_s - at_s for at_s, later_s in pairwise(moments_s) if later_s > self.began_s and at_s < self.ended_s
        )
        return max(found, default=0.0)

    def count(self, moments_s: list[float]) -> int:
        """How many of them are in it."""
        return sum(self.began_s <= at_s <= self.ended_s for at_s in moments_s)


EVER = Window()


@dataclass
class OpenStream:
    """One greedy stream. `failure` is empty when it came to its end. All times are seconds of time.monotonic():
    `arrivals_s` of messages with tokens; `resumed_s`, when it was taken up again with its id and the number of its next
    token, as a client does whose gateway has gone; `refused_s`, when it was refused before its first token with
    UNAVAILABLE, which means that it may be tried again.
    """

    number: int
    tokens: list[int] = field(default_factory=list)
    began_s: float = math.inf
    ended_s: float = math.inf
    arrivals_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    failure: str = "has not ended"

    def was_open(self, window: Window) -> bool:
        """Whether it was at some moment of the window."""
        return self.began_s <= window.ended_s and self.ended_s >= window.began_s


class OpenStreams:
    """As many streams as asked for, of so many tokens each, over the gateways in turn. A context: all end in it."""

    def __init__(
        self,
        addresses: list[str],
        count: int,
        token_count: int,
        *,
        resumes: bool = False,
        waits: bool = False,
        renews: bool = False,
    ) -> None:
        """`resumes`, which may change: streams that end with UNAVAILABLE are taken up again. `waits`: no tokens come
        before what is done in the context. `renews`: as long as the context lasts, the same stream begins anew when it
        has ended; while `holds` is set, which may change too, it waits before that.
        """
        self._addresses, self._token_count, self._waits = addresses, token_count, waits
        self.resumes, self._renews, self.holds = resumes, renews, False
        self._arrivals_s: list[float] = []
        self.streams = [OpenStream(number) for number in range(count)]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)

    def __enter__(self) -> "OpenStreams":
        self._thread.start()
        if not self._waits:
            try:
                # Of streams that begin anew all the time, some wait long for their first token.
                flows = self._flows if self._renews else lambda: not self._silent()
                wait_for(flows, "tokens of the streams", FLOW_LIMIT_S)
            except TimeoutError as error:
                self._renews = False
                silent = ", ".join(str(stream.number) for stream in self._silent())
                raise TimeoutError(f"{error}; without any: {silent}; others got {len(self._arrivals_s)}") from None
        return self

    def _flows(self) -> bool:
        return len(self._silent()) * 2 < len(self.streams)

    def _silent(self) -> list[OpenStream]:
        return [stream for stream in self.streams if not stream.tokens and not self._over(stream)]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._renews = False
        self._thread.join(STREAM_LIMIT_S)

    @staticmethod
    def _over(stream: OpenStream) -> bool:
        return stream.failure != "has not ended"

    @property
    def open_count(self) -> int:
        return sum(not self._over(stream) for stream in self.streams)

    def silence_s(self, window: Window = EVER) -> float:
        """The longest time in which no stream got a token."""
        return window.longest_gap_s(self._arrivals_s)

    def flows_since(self, since_s: float) -> bool:
        """Whether a token has come since then."""
        return bool(self._arrivals_s) and self._arrivals_s[-1] > since_s

    async def _all(self) -> None:
        addresses = [address for address in self._addresses for _ in range(CONNECTIONS)]
        channels = [grpc.aio.insecure_channel(address, OWN_CONNECTION) for address in addresses]
        stubs: list[Any] = [rpc.InferenceServiceStub(channel) for channel in channels]
        await asyncio.gather(*(self._in_turn(stubs, stream) for stream in list(self.streams)))
        for channel in channels:
            await channel.close()

    async def _in_turn(self, stubs: list[Any], stream: OpenStream) -> None:
        await self._one(stubs, stream)
        while self._renews and not stream.failure:
            if self.holds:
                await asyncio.sleep(HELD_S)
                continue
            stream = OpenStream(stream.number)
            self.streams.append(stream)
            await self._one(stubs, stream)

    async def _one(self, stubs: list[Any], stream: OpenStream) -> None:
        prompt = f"# {stream.number}\n{PROMPTS[stream.number % len(PROMPTS)]}"
        how = api.SamplingParams(max_tokens=self._token_count, ignore_eos=True, temperature=0.0)
        # No other stream may have this id: it would be given what was made before.
        name = uuid.uuid4().hex
        stream.began_s = time.monotonic()
        end_s = stream.began_s + STREAM_LIMIT_S
        for attempt in range(1000):
            request = api.GenerateRequest(text=prompt, request_id=name, sampling=how)
            if stream.tokens:
                request.resume_from_token = len(stream.tokens)
            try:
                call = stubs[(stream.number + attempt) % len(stubs)].Generate(request, timeout=end_s - time.monotonic())
                async for message in call:
                    now_s = time.monotonic()
                    stream.arrivals_s.append(now_s)
                    self._arrivals_s.append(now_s)
                    stream.tokens += message.token_ids
                stream.failure, stream.ended_s = "", time.monotonic()
                return
            except grpc.aio.AioRpcError as error:
                now_s = time.monotonic()
                may_resume = self.resumes or not stream.tokens
                if not may_resume or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    stream.failure, stream.ended_s = f"{error.code().name}: {error.details()}", now_s
                    return
                (stream.resumed_s if stream.tokens else stream.refused_s).append(now_s)
                await asyncio.sleep(AGAIN_S)
        stream.failure = "was taken up again too often"


@dataclass(frozen=True, slots=True)
class StreamsOutcome:
    """Of many streams together; `wrong` had other tokens than undisturbed ones, or another number of them."""

    count: int
    failed: int
    wrong: int
    resumed: int
    refused: int
    longest_pause_s: float
    example: str

    @property
    def is_whole(self) -> bool:
        return bool(self.count) and not self.failed and not self.wrong

    def __str__(self) -> str:
        text = f"{self.count} streams, {self.failed} failed, {self.wrong} with other tokens"
        text += f", {self.resumed} taken up again by the client" if self.resumed else ""
        text += f", {self.refused} first refused with UNAVAILABLE" if self.refused else ""
        return f"{text}, longest pause {self.longest_pause_s:.1f} s" + (f" ({self.example})" if self.example else "")


def outcome_of(
    streams: list[OpenStream], undisturbed: list[OpenStream], token_count: int, window: Window = EVER
) -> StreamsOutcome:
    """Of those that were open in the window, compared with the same prompts, served while nothing happened, whose
    outputs may be longer.
    """
    streams = [stream for stream in streams if stream.was_open(window)]
    failures = [stream.failure for stream in streams if stream.failure]
    wrong = [
        stream.number
        for stream in streams
        if not stream.failure and stream.tokens != undisturbed[stream.number].tokens[:token_count]
    ]
    return StreamsOutcome(
        count=len(streams),
        failed=len(failures),
        wrong=len(wrong),
        resumed=sum(bool(window.count(stream.resumed_s)) for stream in streams),
        refused=sum(bool(window.count(stream.refused_s)) for stream in streams),
        longest_pause_s=max((window.longest_gap_s(stream.arrivals_s) for stream in streams), default=0.0),
        example=failures[0] if failures else "",
    )


_UNDISTURBED: list[OpenStream] = []


def undisturbed(address: str) -> list[OpenStream]:
    """The stream of every prompt while nothing happens; made once. Raises RuntimeError if one fails."""
    if not _UNDISTURBED:
        with OpenStreams([address], STREAMS, TOKENS) as before:
            pass
        failures = [stream.failure for stream in before.streams if stream.failure]
        if failures:
            raise RuntimeError(f"{len(failures)} undisturbed streams failed: {failures[0]}")
        _UNDISTURBED.extend(before.streams)
    return _UNDISTURBED
