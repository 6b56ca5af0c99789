"""A REST front as a process in front of a gateway that serves in the test's own process, and a client for it."""

import asyncio
import json
import os
import ssl
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from rest.build import FRONT, digest
from tests.gateway.fake_scheduler_for_gateway import SOON_S, FakeSchedulerForGateway
from tests.gateway.running_gateway import MODEL_NAME, RunningGateway, running_pair

MESSAGES = [{"role": "user", "content": "the dog"}]


def front_program() -> Path:
    """The program, which `make front` builds."""
    mark = FRONT.with_name("digest")
    is_current = FRONT.is_file() and mark.read_text() == digest()
    assert is_current, "the REST front is not current: `make front` builds it"
    return FRONT


@asynccontextmanager
async def running_front(gateway: str, folder: Path, *flags: str) -> AsyncIterator[tuple[Process, str]]:
    """The process of a front, and its HOST:PORT. Killed at the end if it still runs."""
    ready = folder / "front.json"
    argv = ["--listen", "127.0.0.1:0", "--gateway", gateway, "--ready-file", str(ready), *flags]
    process = await asyncio.create_subprocess_exec(
        str(front_program()), *argv, "--die-with-parent", str(os.getpid()), stderr=PIPE
    )
    try:
        async with asyncio.timeout(SOON_S):
            while not ready.exists():
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.005)
        yield process, json.loads(ready.read_text())["http"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Served:
    """A scheduler that the test plays, its gateway, a front, and an HTTP client."""

    def __init__(
        self,
        gateway: RunningGateway,
        scheduler: FakeSchedulerForGateway,
        process: Process,
        address: str,
        http: httpx2.AsyncClient,
    ) -> None:
        self.gateway = gateway
        self.scheduler = scheduler
        self.process = process
        self.address = address
        self.http = http

    async def complete(self, **fields: Any) -> httpx2.Response:
        """POST /v1/completions."""
        return await self.http.post("/v1/completions", json={"model": MODEL_NAME, "prompt": "the dog", **fields})

    async def chat(self, **fields: Any) -> httpx2.Response:
        """POST /v1/chat/completions."""
        body = {"model": MODEL_NAME, "messages": MESSAGES, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    def streamed(self, **fields: Any) -> Any:
        """A completion as a stream, to be entered."""
        body = {"model": MODEL_NAME, "prompt": "the dog", "stream": True, **fields}
        return self.http.stream("POST", "/v1/completions", json=body)


@asynccontextmanager
async def served(
    model: Path, folder: Path, *flags: str, verify: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """All of it, on free ports. `verify`: speak TLS to the front, and take only its certificate."""
    scheme = "http" if verify is None else "https"
    async with (
        running_pair(model, **settings) as (gateway, scheduler),
        running_front(gateway.address, folder, "--gateway-metrics", gateway.metrics_address, *flags) as (
            process,
            address,
        ),
        httpx2.AsyncClient(
            base_url=f"{scheme}://{address}", timeout=SOON_S, trust_env=False, verify=True if verify is None else verify
        ) as http,
    ):
        yield Served(gateway, scheduler, process, address, http)


def refusal(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error object of an answer, which must have this status and all four members."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error


def events(text: str) -> list[Any]:
    """The documents of a stream; the last event must say that it is done."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]", text
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
