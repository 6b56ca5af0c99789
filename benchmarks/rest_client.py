"""The client of a REST benchmark, as a process of its own: streamed completions over plain sockets, so that it costs as
little as possible. Prints one line of JSON. `hold`: opens all, says so, and closes them when stdin ends.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from typing import Any

from services.runtime.process import die_with_parent

_EVENT_END = b"}\n\n"
_DONE = b"data: [DONE]\n\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_OPEN_AT_A_TIME = 64


class StreamedCompletion(asyncio.Protocol):
    """One connection and its request. `ended` is done when the answer is complete, or the connection is closed."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.events = 0
        self.status = b""
        self.first_s: float | None = None
        self.event_s: list[float] = []
        self.keeps_times = False
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self.status = data[9:12]
        # A mark may be cut in two: the last bytes of what came before are looked at again.
        whole = self._tail + data
        count = whole.count(_EVENT_END) - self._tail.count(_EVENT_END)
        if count:
            self.events += count
            now_s = time.perf_counter()
            if self.first_s is None:
                self.first_s = now_s
            if self.keeps_times:
                self.event_s += [now_s] * count
        if whole.endswith(_LAST_CHUNK) and not self.ended.done():
            self.ended.set_result(_DONE in whole)
            self._transport.close()
        self._tail = whole[-64:]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(False)


def request_bytes(tokens: int, prompt: list[int], stream: bool = True) -> bytes:
    """A whole HTTP request for a completion."""
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def opened(address: str, request: bytes, count: int) -> list[StreamedCompletion]:
    """So many requests, a connection each."""
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    streams: list[StreamedCompletion] = []
    while len(streams) < count:
        batch = min(_OPEN_AT_A_TIME, count - len(streams))
        made = await asyncio.gather(
            *(loop.create_connection(lambda: StreamedCompletion(request), host, int(port)) for _ in range(batch))
        )
        streams += [protocol for _, protocol in made]
    return streams


async def run(address: str, count: int, tokens: int, prompt_tokens: int, hold: bool) -> None:
    """Sends the requests, and prints what came back."""
    began_s = time.perf_counter()
    request = request_bytes(tokens, [300] * prompt_tokens, stream=not hold)
    streams = await opened(address, request, count)
    if hold:
        print(json.dumps({"opened": len(streams)}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        return
    whole = await asyncio.gather(*(stream.ended for stream in streams))
    first_s = min((one.first_s for one in streams if one.first_s is not None), default=began_s)
    print(
        json.dumps(
            {
                "whole": sum(whole),
                "events": sum(stream.events for stream in streams),
                "duration_s": time.perf_counter() - first_s,
                "cpu_s": time.process_time(),
                "statuses": sorted({stream.status.decode() for stream in streams}),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("address")
    flags.add_argument("--streams", type=int, required=True)
    flags.add_argument("--tokens", type=int, required=True)
    flags.add_argument("--prompt-tokens", type=int, default=16)
    flags.add_argument("--hold", action="store_true")
    given = flags.parse_args()
    die_with_parent(os.getppid())
    asyncio.run(run(given.address, given.streams, given.tokens, given.prompt_tokens, given.hold))
