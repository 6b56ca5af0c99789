"""What traces cost a server at 50 requests a second: without them, with none sampled, with all sampled.

Theory of operation
-------------------
Four servers run at a time and take turns: one without traces, one more of these as the control, one that samples no
request, and one that samples all and sends their spans to a receiver, a process of its own. In each round the same
trace is run against each, in an order that goes round too, so that what the machine does meanwhile hits all alike. A
figure of a round is compared with the mean of the two servers without traces in that round. Told is the median of the
rounds, with the least and the greatest; what the control differs by is what can't be measured.

CPU time is counted from before a run until the spans of its end are sent, in all threads of a service. The bundled
model computes with one thread, so that no process waits for a core for long.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least, at_most, tell
from benchmarks.servers import Server, bench, cpu_s, demand_no_failures, server, service_processes, write_trace
from benchmarks.settings import BenchError, BenchSettings
from services.workloads.workload import TraceJob, gamma_arrivals

RATE = 50.0
JOBS, ROUNDS = 450, 5
QUICK_JOBS, QUICK_ROUNDS = 100, 2
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
EXPORT_EVERY_MS = 1000
"""The SDK waits 5 s between two exports. Sooner means more of them."""
SETTLED_S = 1.5
RECEIVER_LIMIT_S = 30.0
MOST_PERCENT = 2.0

OFF, CONTROL, UNSAMPLED, SAMPLED = "off", "off, control", "none sampled", "all sampled"
MODES = (OFF, CONTROL, UNSAMPLED, SAMPLED)
LIGHT = ("gateway", "scheduler", "kvmanager")
"""The services that trace."""
SERVICES = (*LIGHT, "worker")
FIGURES = ("light_ms", "server_ms", "jct_ms", "jct_p99_ms", "ttft_ms", "ttft_p99_ms")
NAMES = ("CPU of gateway, scheduler, KV manager", "CPU with the worker's", "JCT", "JCT P99", "first token", "its P99")

Pass = dict[str, float]


class TraceReceiver:
    """The receiver's process."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    async def told(self) -> dict[str, int]:
        """Spans and bytes that it was sent so far."""
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        self._process.stdin.write(b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), RECEIVER_LIMIT_S)
        if not line:
            raise BenchError("the receiver of the traces ended; see otlp-receiver.log")
        answer: dict[str, int] = json.loads(line)
        return answer


@asynccontextmanager
async def receiving(log: Path) -> AsyncIterator[TraceReceiver]:
    pipe = asyncio.subprocess.PIPE
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.otlp_receiver", stdin=pipe, stdout=pipe, stderr=errors
        )
    try:
        assert process.stdout is not None, "stdout is a pipe"
        address = (await asyncio.wait_for(process.stdout.readline(), RECEIVER_LIMIT_S)).decode().strip()
        yield TraceReceiver(process, address)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _variables(mode: str, receiver: str) -> dict[str, str]:
    """The environment of a server."""
    if mode in (OFF, CONTROL):
        return {"OTEL_TRACES_EXPORTER": "none"}
    return {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver}",
        "OTEL_BSP_SCHEDULE_DELAY": str(EXPORT_EVERY_MS),
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "1.0" if mode == SAMPLED else "0.0",
    }


def _cpu_s(of: Server) -> dict[str, float]:
    processes = service_processes(of)
    return {service: cpu_s(processes[service]) for service in SERVICES}


async def _pass(settings: BenchSettings, mode: str, of: Server, trace: Path, jobs: int) -> Pass:
    """One run of a trace: milliseconds, CPU time a request."""
    out = settings.folder("raw", f"tracing-{MODES.index(mode)}")
    before = _cpu_s(of)
    result = await bench(of, trace, out)
    await asyncio.sleep(SETTLED_S)
    after = _cpu_s(of)
    demand_no_failures(result, out)
    spent_ms = {service: (after[service] - before[service]) / jobs * 1e3 for service in SERVICES}
    return {
        **{f"{service}_ms": spent for service, spent in spent_ms.items()},
        "light_ms": sum(spent_ms[service] for service in LIGHT),
        "server_ms": sum(spent_ms.values()),
        "jct_ms": result["jct_s"]["mean"] * 1e3,
        "jct_p99_ms": result["jct_s"]["p99"] * 1e3,
        "ttft_ms": result["ttft_s"]["mean"] * 1e3,
        "ttft_p99_ms": result["ttft_s"]["p99"] * 1e3,
    }


def _trace(settings: BenchSettings, seed: int, jobs: int) -> Path:
    """Arrivals at random (Poisson); all requests alike."""
    arrivals = gamma_arrivals(jobs, RATE, 1.0, Random(seed))
    trace = [TraceJob(str(number), at_s, PROMPT_TOKENS, OUTPUT_TOKENS) for number, at_s in enumerate(arrivals)]
    return write_trace(settings.folder("traces") / f"tracing-{seed}.jsonl", trace)


async def _rounds(settings: BenchSettings, servers: Mapping[str, Server], receiver: TraceReceiver) -> dict[str, Any]:
    jobs, count = settings.pick((JOBS, ROUNDS), (QUICK_JOBS, QUICK_ROUNDS))
    passes: dict[str, list[Pass]] = {mode: [] for mode in MODES}
    for mode in MODES:
        await _pass(settings, mode, servers[mode], _trace(settings, 0, jobs), jobs)
    before = await receiver.told()
    for number in range(count):
        tell(f"tracing: round {number + 1} of {count}")
        trace, first = _trace(settings, number + 1, jobs), number % len(MODES)
        for mode in (*MODES[first:], *MODES[:first]):
            passes[mode].append(await _pass(settings, mode, servers[mode], trace, jobs))
    after = await receiver.told()
    requests = jobs * count
    return {
        "requests_a_pass": jobs,
        "rounds": count,
        "spans_a_request": (after["spans"] - before["spans"]) / requests,
        "bytes_a_request": (after["bytes"] - before["bytes"]) / requests,
        "passes": passes,
    }


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    threads = ["--threads", "1"] if settings.threads is None else []
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving(settings.folder("logs") / "otlp-receiver.log"))
        servers = {}
        for number, mode in enumerate(MODES):
            variables = _variables(mode, receiver.address)
            opened = server(settings, f"tracing-{number}", threads, variables)
            servers[mode] = await stack.enter_async_context(opened)
        measured = await _rounds(settings, servers, receiver)
    return {"rate": RATE, "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, **measured}


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Rounds of one pass a server."""
    return asyncio.run(_measure(settings))


def differences(passes: Mapping[str, Sequence[Pass]], mode: str, figure: str) -> list[float]:
    """What a mode's figure is above that of the servers without traces, percent, by round. For `off` itself these are
    the deviations from the mean of the two.
    """
    rounds = zip(passes[OFF], passes[CONTROL], passes[mode], strict=True)
    return [
        (one[figure] / statistics.mean((off[figure], control[figure])) - 1.0) * 100.0 for off, control, one in rounds
    ]


def _noise(measured: dict[str, Any], figure: str) -> float:
    """The most that the control differed by from the other server without traces, percent."""
    return max(abs(2.0 * one) for one in differences(measured["passes"], CONTROL, figure))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """Unsampled: no measurable change. Sampled: at most 2 %, of first tokens no measurable change, and every request's
    spans arrived.
    """
    passes, made = measured["passes"], []
    for figure, name in zip(FIGURES, NAMES, strict=True):
        if not figure.endswith("p99_ms"):
            above = statistics.median(differences(passes, UNSAMPLED, figure))
            made.append(at_most(f"no request sampled: {name}, above none", above, _noise(measured, figure), " %"))
    for figure, name in zip(FIGURES, NAMES, strict=True):
        if not figure.endswith("p99_ms"):
            above = statistics.median(differences(passes, SAMPLED, figure))
            # What a first token waits differs by more than that between two servers without traces.
            limit = max(MOST_PERCENT, _noise(measured, figure)) if figure == "ttft_ms" else MOST_PERCENT
            made.append(at_most(f"every request sampled: {name}, above none", above, limit, " %"))
    made.append(at_least("every request sampled: spans of a request that arrived", measured["spans_a_request"], 6.0))
    return made


def _spread(values: Sequence[float], sign: str = "") -> str:
    middle, least, greatest = statistics.median(values), min(values), max(values)
    return f"{middle:{sign}.3g} ({least:{sign}.3g} to {greatest:{sign}.3g})"


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    passes = measured["passes"]
    note = (
        f"{measured['rate']:.0f} requests a second of {measured['prompt_tokens']} prompt and "
        f"{measured['output_tokens']} output tokens, {measured['rounds']} rounds of {measured['requests_a_pass']}; "
        f"medians of the rounds, with the least and the greatest. Every request sampled: "
        f"{measured['spans_a_request']:.1f} spans and {measured['bytes_a_request']:.0f} bytes each."
    )
    above = [
        (name, *(_spread(differences(passes, mode, figure), "+") for mode in (CONTROL, UNSAMPLED, SAMPLED)))
        for figure, name in zip(FIGURES, NAMES, strict=True)
    ]
    spent = [
        (mode, *(_spread([one[f"{service}_ms"] for one in passes[mode]]) for service in SERVICES)) for mode in MODES
    ]
    came = [(mode, *(_spread([one[figure] for one in passes[mode]]) for figure in FIGURES[2:])) for mode in MODES]
    return [
        Table("Traces: above a server without them, percent", ("", CONTROL, UNSAMPLED, SAMPLED), above, note),
        Table("Traces: CPU time of a request, ms", ("", *SERVICES), spent),
        Table("Traces: what clients saw, ms", ("", *NAMES[2:]), came),
    ]
