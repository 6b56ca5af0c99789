"""The gateway as a process of its own: imports, many streams, draining, and errors that end it at the start."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fastserve.v1 import inference_pb2 as api
from fastserve.v1 import inference_pb2_grpc
from services.domain.errors import StreamLostError
from services.domain.generation import EndReason
from services.runtime.error_statuses import from_grpc
from tests.builders.channels import patient_channel
from tests.builders.module_processes import start_module
from tests.gateway.fake_scheduler_for_gateway import SOON_S, FakeSchedulerForGateway
from tests.gateway.running_gateway import running_gateway

STREAMS = 300
TOKENS = 20


async def start(model: Path, scheduler: str, *flags: str) -> asyncio.subprocess.Process:
    flags = ("--model", str(model), "--scheduler", scheduler, "--served-model-name", "tiny", "--grpc-port", "0", *flags)
    return await start_module("services.gateway", *flags, stderr=asyncio.subprocess.PIPE)


async def address_of(process: asyncio.subprocess.Process, ready_file: Path) -> str:
    """The address in the ready file, which exists by the time the process logs that it is ready."""
    assert process.stderr is not None
    async with asyncio.timeout(SOON_S):
        while line := await process.stderr.readline():
            if ready_file.exists():
                address: str = json.loads(ready_file.read_text())["grpc"]
                return address
    raise AssertionError(f"the process ended before it was ready: {line!r}")


@asynccontextmanager
async def gateway_process(
    model: Path, scheduler: FakeSchedulerForGateway, folder: Path, *flags: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    ready_file = folder / "ready.json"
    process = await start(model, scheduler.address, "--ready-file", str(ready_file), *flags)
    try:
        async with patient_channel(await address_of(process, ready_file)) as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
            async with asyncio.timeout(SOON_S):
                await until_listed(stub)
            yield process, stub
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until_listed(stub: Any) -> None:
    """Waits until the gateway has found its scheduler."""
    while True:
        call = stub.ListModels(api.ListModelsRequest())
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_hundreds_of_streams_at_a_time_each_get_their_own_tokens(
    model: Path, tmp_path: Path, scheduler: FakeSchedulerForGateway
) -> None:
    async with gateway_process(model, scheduler, tmp_path) as (_, stub):

        async def one(number: int) -> list[int]:
            request = api.GenerateRequest(
                token_ids=api.TokenIds(ids=[number, 1]), sampling=api.SamplingParams(max_tokens=TOKENS)
            )
            stream = stub.Generate(request, timeout=60)
            return [token_id async for message in stream for token_id in message.token_ids]

        running = [asyncio.create_task(one(number)) for number in range(STREAMS)]
        jobs = [await scheduler.next_job() for _ in range(STREAMS)]
        for turn in range(TOKENS):
            finish = EndReason.LENGTH if turn == TOKENS - 1 else None
            scheduler.send([job.update([(job.submission.prompt[0] + turn) % 400], finish) for job in jobs])
        made = await asyncio.wait_for(asyncio.gather(*running), 60)
    assert made == [[(number + turn) % 400 for turn in range(TOKENS)] for number in range(STREAMS)]


async def test_sigterm_lets_open_streams_end_refuses_new_ones_and_exits_0(
    model: Path, tmp_path: Path, scheduler: FakeSchedulerForGateway
) -> None:
    async with gateway_process(model, scheduler, tmp_path) as (process, stub):
        stream = stub.Generate(api.GenerateRequest(text="the dog"), timeout=SOON_S)
        job = await scheduler.next_job()
        job.send(5)
        assert isinstance(await stream.read(), api.GenerateResponse)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SOON_S):
            await until_refused(stub, scheduler)
        job.send(6, finish=EndReason.LENGTH)
        last = await stream.read()
        assert isinstance(last, api.GenerateResponse)
        assert (list(last.token_ids), last.finish_reason) == ([6], api.FINISH_REASON_LENGTH)
        assert await asyncio.wait_for(process.wait(), SOON_S) == 0


async def until_refused(stub: Any, scheduler: FakeSchedulerForGateway) -> None:
    """Sends requests until one is refused, which shows that the signal has arrived."""
    while True:
        stream = stub.Generate(api.GenerateRequest(text="another"), timeout=SOON_S)
        arrival = asyncio.create_task(scheduler.next_job())
        code = asyncio.create_task(stream.code())
        await asyncio.wait((arrival, code), return_when=asyncio.FIRST_COMPLETED)
        if code.done():
            arrival.cancel()
            assert code.result() is grpc.StatusCode.UNAVAILABLE
            return
        arrival.result().send(finish=EndReason.LENGTH)
        await code


async def test_a_stream_that_outlasts_the_drain_is_resumed_at_another_gateway_where_it_was(
    model: Path, tmp_path: Path, scheduler: FakeSchedulerForGateway
) -> None:
    async with gateway_process(model, scheduler, tmp_path, "--drain-limit", "0.1") as (process, stub):
        stream = stub.Generate(api.GenerateRequest(text="the dog"), timeout=SOON_S)
        job = await scheduler.next_job()
        job.send(5, 6)
        first = await stream.read()
        assert isinstance(first, api.GenerateResponse)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        lost = from_grpc(caught.value)
        assert isinstance(lost, StreamLostError)
        assert (lost.request_id, lost.resume_from_token) == (first.request_id, 2)
        assert await asyncio.wait_for(process.wait(), SOON_S) == 0
    assert not job.cancelled.done(), "the job goes on, so that it can be joined"
    async with running_gateway(model, scheduler.address) as other:
        again = other.generate(
            api.GenerateRequest(text="the dog", request_id=lost.request_id, resume_from_token=lost.resume_from_token)
        )
        job.send(7)
        job.send(8, finish=EndReason.LENGTH)
        rest = [message async for message in again]
    assert (rest[0].first_token_number, [token_id for one in rest for token_id in one.token_ids]) == (2, [7, 8])


async def test_an_error_at_the_start_is_reported_in_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for flags, word in (
        (("--model", str(tmp_path / "nowhere")), "not a folder"),
        (("--model", str(tmp_path / "empty")), "config.json"),
        (("--grpc-port", "99999"), "--grpc-port"),
    ):
        process = await start(model, "127.0.0.1:1", *flags)
        _, stderr = await asyncio.wait_for(process.communicate(), SOON_S)
        assert process.returncode == 1
        assert stderr.decode().count("\n") == 1
        assert word in stderr.decode()


async def test_the_gateway_never_imports_torch() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys, services.gateway.__main__; sys.exit('torch' in sys.modules)"
    )
    assert await asyncio.wait_for(process.wait(), SOON_S) == 0
