"""What REST costs: a gateway and a REST front before a stub scheduler, with no model behind them.

Three things are measured. How much later tokens come over REST than over gRPC direct, for one request at a time on an
idle machine, in turn. How many tokens a second a front passes on, an event each, and what gateway and front spend on
one; and that many streams finish. How much memory the gateway takes for open requests.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least, at_most
from benchmarks.rest_client import StreamedCompletion, request_bytes
from benchmarks.servers import resident_bytes
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.stub_scheduler import StubScheduler
from services.domain.generation import GenerateRequest, SamplingRequest
from services.loadgen.gateway_client import GatewayClient, encode
from services.runtime.model_files import BUNDLED_MODEL

FRONT = Path(__file__).resolve().parents[1] / "build" / "rest" / "fastserve-rest"
LATENCY_REQUESTS, LATENCY_TOKENS, LATENCY_INTERVAL_S = 300, 8, 0.02
STREAMS, TOKENS = 256, 400
RATES = (12_000, 20_000, 28_000, 36_000)
WANTED_RATE = 12_000
MANY_STREAMS, MANY_TOKENS, MANY_RATE = 2_000, 40, 5_000
HELD_REQUESTS, HELD_PROMPT_TOKENS = 10_000, 512
SETTLED_S = 2.0
READY_LIMIT_S = 60.0


class Stack:
    """A gateway and a front, as processes, behind them some scheduler."""

    def __init__(self, gateway: int, front: int, grpc: str, http: str) -> None:
        self.processes = {"gateway": gateway, "front": front}
        self.scheduler: int | None = None
        self.grpc = grpc
        self.http = http

    def cpu_s(self) -> dict[str, float]:
        """CPU time so far."""
        return {name: _cpu_s(process) for name, process in self.processes.items()}

    def resident_mb(self) -> dict[str, float]:
        """Memory now."""
        return {name: resident_bytes(process)[0] / 1e6 for name, process in self.processes.items()}


def _cpu_s(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def _process(log: Path, *argv: str, pipes: bool = False) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE if pipes else None
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=errors)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ready(process: asyncio.subprocess.Process, file: Path) -> dict[str, str]:
    async with asyncio.timeout(READY_LIMIT_S):
        while not file.exists():  # noqa: ASYNC240 (a file of ours)
            if process.returncode is not None:
                raise BenchError(f"a process of the REST benchmark ended; see the logs beside {file}")
            await asyncio.sleep(0.02)
    ready: dict[str, str] = json.loads(file.read_text())  # noqa: ASYNC240
    return ready


@asynccontextmanager
async def _stack(folder: Path, scheduler: str) -> AsyncIterator[Stack]:
    if not FRONT.is_file():
        raise BenchError("the REST front is not there: `make front` builds it")
    files = {name: folder / f"{name}.json" for name in ("gateway", "front")}
    for file in files.values():
        file.unlink(missing_ok=True)
    parent = ("--die-with-parent", str(os.getpid()))
    model = ("--model", str(BUNDLED_MODEL), "--served-model-name", "m")
    flags = ("--scheduler", scheduler, "--grpc-port", "0", "--ready-file", str(files["gateway"]), *parent)
    argv = (sys.executable, "-m", "services.gateway", *model, *flags)
    async with _process(folder / "gateway.log", *argv) as gateway:
        grpc = (await _ready(gateway, files["gateway"]))["grpc"]
        flags = ("--listen", "127.0.0.1:0", "--gateway", grpc, "--ready-file", str(files["front"]), *parent)
        async with _process(folder / "front.log", str(FRONT), *flags) as front:
            http = (await _ready(front, files["front"]))["http"]
            async with GatewayClient(grpc) as client, asyncio.timeout(READY_LIMIT_S):
                while not await client.ready():  # noqa: ASYNC110 (another process says so)
                    await asyncio.sleep(0.02)
            yield Stack(gateway.pid, front.pid, grpc, http)


@asynccontextmanager
async def _stub_stack(folder: Path, *flags: str) -> AsyncIterator[Stack]:
    """The same with a stub scheduler in a process of its own."""
    async with AsyncExitStack() as stack:
        argv = (sys.executable, "-m", "benchmarks.stub_scheduler", *flags)
        stub = await stack.enter_async_context(_process(folder / "stub.log", *argv, pipes=True))
        assert stub.stdout is not None, "stdout is a pipe"
        address = (await stub.stdout.readline()).decode().strip()
        ready = await stack.enter_async_context(_stack(folder, address))
        ready.scheduler = stub.pid
        yield ready


# --- latency --------------------------------------------------------------------------------


def _later(stub: StubScheduler, began_s: float, came_s: Sequence[float]) -> tuple[list[float], list[float]]:
    """What a request took beside the scheduler: to and from it for the first token, and from it for each later one."""
    ((job_id, sent_s),) = stub.sent_s.items()
    on_its_way_s = stub.arrived_s[job_id] - began_s + came_s[0] - sent_s[0]
    later_s = [came - sent for came, sent in zip(came_s[1:], sent_s[1:], strict=True)]
    stub.sent_s.clear()
    stub.arrived_s.clear()
    return [on_its_way_s], later_s


async def _over_grpc(client: GatewayClient, request: bytes) -> tuple[float, list[float]]:
    began_s = time.perf_counter()
    came_s: list[float] = []
    async for progress in client.progress(request):
        came_s += [time.perf_counter()] * progress.token_count
    return began_s, came_s


async def _over_rest(address: str, request: bytes) -> tuple[float, list[float]]:
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    transport, stream = await loop.create_connection(lambda: StreamedCompletion(b""), host, int(port))
    stream.keeps_times = True
    # The connection is there already, as that of gRPC is.
    await asyncio.sleep(LATENCY_INTERVAL_S)
    began_s = time.perf_counter()
    transport.write(request)
    if not await stream.ended:
        raise BenchError(f"a request over REST failed with status {stream.status.decode()}")
    return began_s, stream.event_s


async def _latency(settings: BenchSettings) -> dict[str, Any]:
    stub = StubScheduler(LATENCY_INTERVAL_S, keeps_times=True)
    await stub.start()
    first_s: dict[str, list[float]] = {"grpc": [], "rest": []}
    later_s: dict[str, list[float]] = {"grpc": [], "rest": []}
    prompt = [300] * 16
    sampling = SamplingRequest(max_tokens=LATENCY_TOKENS)
    over_grpc, over_rest = (
        encode(GenerateRequest(token_ids=prompt, sampling=sampling)),
        request_bytes(LATENCY_TOKENS, prompt),
    )
    async with _stack(settings.folder("rest"), stub.address) as stack, GatewayClient(stack.grpc) as client:
        for number in range(settings.pick(LATENCY_REQUESTS, 20)):
            for way in ("grpc", "rest") if number % 2 else ("rest", "grpc"):
                run = _over_grpc(client, over_grpc) if way == "grpc" else _over_rest(stack.http, over_rest)
                first, later = _later(stub, *await run)
                if number > 2:
                    first_s[way] += first
                    later_s[way] += later
    await stub.stop()
    return {
        way: {"first_token_s": statistics.median(first_s[way]), "later_token_s": statistics.median(later_s[way])}
        for way in ("grpc", "rest")
    }


# --- throughput --------------------------------------------------------------------------------


async def _client(folder: Path, stack: Stack, streams: int, tokens: int) -> dict[str, Any]:
    """Runs the client; what it saw, and the CPU time a token of gateway and front."""
    assert stack.scheduler is not None, "only a stub in a process of its own is measured"
    before, scheduler_s = stack.cpu_s(), _cpu_s(stack.scheduler)
    argv = (
        sys.executable,
        "-m",
        "benchmarks.rest_client",
        stack.http,
        "--streams",
        str(streams),
        "--tokens",
        str(tokens),
    )
    async with _process(folder / "client.log", *argv, pipes=True) as process:
        out, _ = await process.communicate()
    after = stack.cpu_s()
    seen = json.loads(out)
    spent_s = {name: after[name] - before[name] for name in after}
    spent_s["stub scheduler"] = _cpu_s(stack.scheduler) - scheduler_s
    spent_s["client"] = seen["cpu_s"]
    made = streams * tokens
    return {
        "streams": streams,
        "failed": streams - seen["whole"],
        "tokens_per_s": made / seen["duration_s"],
        "events_per_token": seen["events"] / made,
        "statuses": seen["statuses"],
        "cpu_us_a_token": {name: spent_s[name] / made * 1e6 for name in after},
        "busy_cores": {name: spent / seen["duration_s"] for name, spent in spent_s.items()},
    }


async def _throughput(settings: BenchSettings, streams: int, tokens: int, rate: int) -> dict[str, Any]:
    folder = settings.folder("rest")
    async with _stub_stack(folder, "--interval-s", str(streams / rate)) as stack:
        return {"asked_per_s": rate, **await _client(folder, stack, streams, tokens)}


# --- memory --------------------------------------------------------------------------------


async def _memory(settings: BenchSettings) -> dict[str, Any]:
    folder, requests = settings.folder("rest"), settings.pick(HELD_REQUESTS, 500)
    async with _stub_stack(folder, "--hold") as stack:
        idle = stack.resident_mb()
        argv = (sys.executable, "-m", "benchmarks.rest_client", stack.http, "--hold", "--streams", str(requests))
        flags = ("--tokens", "512", "--prompt-tokens", str(HELD_PROMPT_TOKENS))
        async with _process(folder / "client.log", *argv, *flags, pipes=True) as process:
            assert process.stdout is not None, "stdout is a pipe"
            made = json.loads(await process.stdout.readline())["opened"]
            before, now = -1.0, 0.0
            while now > before:
                await asyncio.sleep(SETTLED_S)
                before, now = now, stack.resident_mb()["gateway"]
            full = stack.resident_mb()
    return {"requests": made, "idle_mb": idle, "full_mb": full}


# --- the part --------------------------------------------------------------------------------


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    return {
        "latency": await _latency(settings),
        "rates": [
            await _throughput(settings, STREAMS, settings.pick(TOKENS, 40), rate)
            for rate in settings.pick(RATES, (4_000,))
        ],
        "many_streams": await _throughput(settings, settings.pick(MANY_STREAMS, 300), MANY_TOKENS, MANY_RATE),
        "memory": await _memory(settings),
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """All three."""
    return asyncio.run(_measure(settings))


def _added_ms(measured: dict[str, Any], token: str) -> float:
    latency = measured["latency"]
    return float(latency["rest"][token] - latency["grpc"][token]) * 1e3


def goals(measured: dict[str, Any]) -> list[Goal]:
    """What REST may cost."""
    made = [
        at_most("REST: added to the median first token", _added_ms(measured, "first_token_s"), 1.0, " ms"),
        at_most("REST: added to the median later token", _added_ms(measured, "later_token_s"), 0.3, " ms"),
    ]
    for run in measured["rates"]:
        if run["asked_per_s"] == WANTED_RATE:
            what = f"REST: {run['streams']} streams"
            made.append(at_least(f"{what}, events a token", run["events_per_token"], 0.99))
            made.append(
                at_most(f"{what}, CPU of gateway and front", sum(run["cpu_us_a_token"].values()), 60.0, " us/token")
            )
    most = max(run["tokens_per_s"] for run in measured["rates"])
    made.append(at_least("REST: tokens/s through one front, an event each", most, WANTED_RATE))
    many, memory = measured["many_streams"], measured["memory"]
    made.append(at_most(f"REST: failed of {many['streams']} streams", many["failed"], 0))
    grown = memory["full_mb"]["gateway"] - memory["idle_mb"]["gateway"]
    made.append(at_most(f"REST: gateway's memory for {memory['requests']} open requests", grown, 200.0, " MB"))
    return made


def _busiest(run: dict[str, Any]) -> str:
    """The process that used most of a core: at the highest rates, what limits. All but the front have one thread."""
    name, cores = max(run["busy_cores"].items(), key=lambda one: one[1])
    return f"{name}, {cores:.2f} of a core"


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    ways = [
        (name, f"{one['first_token_s'] * 1e3:.2f}", f"{one['later_token_s'] * 1e3:.2f}")
        for name, one in measured["latency"].items()
    ]
    rows = [
        (
            f"{run['streams']}",
            f"{run['asked_per_s']}",
            f"{run['tokens_per_s']:.0f}",
            f"{run['events_per_token']:.2f}",
            f"{run['cpu_us_a_token']['gateway']:.0f}",
            f"{run['cpu_us_a_token']['front']:.0f}",
            f"{run['failed']}",
            _busiest(run),
        )
        for run in (*measured["rates"], measured["many_streams"])
    ]
    heading = (
        "streams",
        "asked, tokens/s",
        "reached",
        "events a token",
        "gateway, us/token",
        "front, us/token",
        "failed",
        "busiest",
    )
    memory = measured["memory"]
    held = [(name, f"{memory['idle_mb'][name]:.0f}", f"{memory['full_mb'][name]:.0f}") for name in memory["full_mb"]]
    return [
        Table(
            "REST: medians beside the scheduler, ms, one request at a time", ("", "first token", "later token"), ways
        ),
        Table("REST: streams through one front, stub scheduler and client on the same cores", heading, rows),
        Table(f"REST: resident memory, MB, {memory['requests']} requests held open", ("", "idle", "held"), held),
    ]
