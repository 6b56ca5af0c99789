"""Resident memory of gateway, scheduler and KV manager with 10,000 jobs of 512 tokens queued; none has torch in it.

The services are real, and so is the worker; it runs a model so slow that hardly any job can end meanwhile. Streams
are held open until the figures are taken. This is done twice, each time with a new server: with one job per stream, and
with eight jobs (choices) per stream. The cost of as many streams in a gRPC server that does nothing is shown beside
them.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.bare_server import METHOD
from benchmarks.goals_and_tables import Goal, Table, at_most
from benchmarks.model_folders import random_model
from benchmarks.servers import Server, maps_library, resident_bytes, server, service_processes
from benchmarks.settings import BenchError, BenchSettings
from services.domain.generation import GenerateRequest, SamplingRequest
from services.loadgen.gateway_client import GatewayClient, encode
from services.runtime.channel import open_channel
from services.runtime.command_line import CommandError
from services.workloads.workload import random_token_ids

JOBS = 10_000
QUICK_JOBS = 480
PROMPT_TOKENS = 512
OUTPUT_TOKENS = 512
LEAST_QUEUED_SHARE = 0.99
MOST_MB = 200.0
QUEUED_LIMIT_S = 180.0
STATUS_PAUSE_S = 0.25
JOBS_A_STREAM = (1, 8)
BARE_SETTLED_S = 1.0
SERVICES = ("gateway", "scheduler", "kvmanager")


async def _hold(client: GatewayClient, request: bytes, errors: list[str]) -> None:
    """Holds a stream open."""
    try:
        async for _ in client.progress(request):
            pass
    except CommandError as error:
        errors.append(str(error))


async def _all_queued(client: GatewayClient, jobs: int, errors: list[str]) -> int:
    """Waits until the server has the jobs, except a few that may have ended; returns how many it has."""
    limit_s = time.monotonic() + QUEUED_LIMIT_S
    queued = 0
    async for snapshot in client.watch_status(STATUS_PAUSE_S):
        queued = snapshot.jobs
        if errors:
            raise BenchError(f"a job was refused: {errors[0]}")
        if snapshot.counters.jobs_admitted >= jobs:
            break
        if time.monotonic() > limit_s:
            raise BenchError(f"only {queued} of {jobs} jobs were queued within {QUEUED_LIMIT_S:.0f} s")
    if queued < jobs * LEAST_QUEUED_SHARE:
        raise BenchError(f"only {queued} of {jobs} jobs are still queued: the worker is too fast for this measurement")
    return queued


def _figures(of: Server) -> dict[str, dict[str, Any]]:
    processes = service_processes(of)
    made = {}
    for service in SERVICES:
        now, peak = resident_bytes(processes[service])
        made[service] = {
            "resident_mb": round(now / 1e6, 1),
            "peak_mb": round(peak / 1e6, 1),
            "has_torch": maps_library(processes[service], "libtorch"),
        }
    return made


def _requests(streams: int, jobs_a_stream: int, vocabulary_size: int) -> list[bytes]:
    sampling = SamplingRequest(max_tokens=OUTPUT_TOKENS, ignore_eos=True, n=jobs_a_stream)
    prompts = (random_token_ids(PROMPT_TOKENS, vocabulary_size, f"memory/{number}") for number in range(streams))
    return [encode(GenerateRequest(token_ids=prompt, sampling=sampling)) for prompt in prompts]


@asynccontextmanager
async def _held(streams: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Keeps streams open for the length of a block."""
    tasks = [asyncio.create_task(stream) for stream in streams]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _measure_services(settings: BenchSettings, jobs: int, jobs_a_stream: int) -> dict[str, Any]:
    errors: list[str] = []
    flags = ["--model", str(random_model("M"))]
    async with (
        server(settings, f"memory-{jobs_a_stream}", flags) as ready,
        GatewayClient(ready.address) as client,
    ):
        vocabulary_size = (await client.models())[0].vocabulary_size
        idle = _figures(ready)
        requests = _requests(jobs // jobs_a_stream, jobs_a_stream, vocabulary_size)
        async with _held([_hold(client, request, errors) for request in requests]):
            queued = await _all_queued(client, jobs, errors)
            full = _figures(ready)
    return {
        "jobs_a_stream": jobs_a_stream,
        "jobs_queued": queued,
        "services": {name: {**full[name], "idle_mb": idle[name]["resident_mb"]} for name in SERVICES},
    }


async def _measure_bare(streams: int) -> dict[str, float]:
    """Memory of a gRPC server that holds as many streams and does nothing else."""
    argv = [sys.executable, "-m", "benchmarks.bare_server"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdin is not None, "stdin is a pipe"
    assert process.stdout is not None, "stdout is a pipe"
    try:
        port = int(await process.stdout.readline())
        idle = resident_bytes(process.pid)[0]
        requests = _requests(streams, 1, 16_000)
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_stream(METHOD)

            async def hold(request: bytes) -> None:
                await call(request).read()

            async with _held([hold(request) for request in requests]):
                full = await _settled_bytes(process.pid)
    finally:
        process.stdin.close()
        await process.wait()
    return {"idle_mb": round(idle / 1e6, 1), "resident_mb": round(full / 1e6, 1)}


async def _settled_bytes(process: int) -> int:
    """Resident memory once it stops growing: a server that only waits can't otherwise say that it has all calls."""
    before, now = -1, resident_bytes(process)[0]
    while now > before:
        await asyncio.sleep(BARE_SETTLED_S)
        before, now = now, resident_bytes(process)[0]
    return now


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    jobs = settings.pick(JOBS, QUICK_JOBS)
    return {
        "jobs_sent": jobs,
        "prompt_tokens": PROMPT_TOKENS,
        "runs": [await _measure_services(settings, jobs, count) for count in JOBS_A_STREAM],
        "bare_grpc_server": await _measure_bare(jobs),
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Memory of the three services, empty and full."""
    return asyncio.run(_measure(settings))


def _streams_of(run: dict[str, Any]) -> str:
    count = run["jobs_a_stream"]
    return "a stream each" if count == 1 else f"{count} jobs a stream"


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The goals of each of the three."""
    made = []
    for run in measured["runs"]:
        for name, figures in run["services"].items():
            text = f"{name}: memory with {run['jobs_queued']} jobs, {_streams_of(run)}"
            made.append(at_most(text, figures["resident_mb"], MOST_MB, " MB"))
    with_torch = {name for run in measured["runs"] for name, figures in run["services"].items() if figures["has_torch"]}
    told = ", ".join(sorted(with_torch)) or "none"
    return [*made, Goal("services but the worker with torch in memory", "none", told, not with_torch)]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    heading = ("", "idle", "with the jobs", "peak")
    rows = [
        (
            f"{name}, {_streams_of(run)}",
            f"{figures['idle_mb']:.0f}",
            f"{figures['resident_mb']:.0f}",
            f"{figures['peak_mb']:.0f}",
        )
        for run in measured["runs"]
        for name, figures in run["services"].items()
    ]
    bare = measured["bare_grpc_server"]
    rows.append(
        ("a gRPC server that does nothing, a stream each", f"{bare['idle_mb']:.0f}", f"{bare['resident_mb']:.0f}", "-")
    )
    title = f"Resident memory, MB, {measured['jobs_sent']} jobs of {measured['prompt_tokens']} prompt tokens queued"
    return [Table(title, heading, rows)]
