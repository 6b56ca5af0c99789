"""Servers under measurement: `fastserve up` as a process, its services' processes, and `fastserve bench` against it.

The client of a measurement is a process of its own, started for each trace run; this one sleeps meanwhile.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.settings import BenchError, BenchSettings
from services.loadgen.server_process import running_server
from services.workloads.workload import TraceJob, trace_line

PROCESSES = Path("/proc")
TRACE_RUN_LIMIT_S = 1800.0

Result = dict[str, Any]
"""The content of a `result.json`."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready. `process` is that of `fastserve up`."""

    address: str
    process: int


@asynccontextmanager
async def server(
    settings: BenchSettings, name: str, flags: Sequence[str], variables: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """A whole server with these flags of `fastserve up`, and these variables in its environment; `name` is that of its
    log.
    """
    log = settings.folder("logs") / f"{name}.log"
    async with running_server([*settings.engine_flags(), *flags], log, variables) as addresses:
        yield Server(addresses.grpc, addresses.process)


def _parents() -> dict[int, int]:
    """The parent of every process of the system."""
    parents: dict[int, int] = {}
    for folder in PROCESSES.iterdir():
        if folder.name.isdigit():
            try:
                # The name of a program, in parentheses, may contain anything.
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended meanwhile
    return parents


def service_processes(of: Server | None = None) -> dict[str, int]:
    """The process ids of a server's services, by service; without one, of the only server that this process runs."""
    ancestor = os.getpid() if of is None else of.process
    parents = _parents()

    def descends(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == ancestor:
                return True
        return False

    found: dict[str, int] = {}
    for process in filter(descends, parents):
        arguments = (PROCESSES / str(process) / "cmdline").read_text().split("\0")
        if "-m" in arguments:
            module = arguments[arguments.index("-m") + 1]
            if module.startswith("services.") and module != "services.cli":
                found[module.removeprefix("services.")] = process
    return found


def cpu_s(process: int) -> float:
    """CPU time of a process's threads so far, exact to the scheduler's nanoseconds; threads that ended are left out."""
    tasks = (PROCESSES / str(process) / "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_bytes(process: int) -> tuple[int, int]:
    """Resident memory of a process, now and at its peak."""
    lines = (PROCESSES / str(process) / "status").read_text().splitlines()
    kib = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(kib["VmRSS"].split()[0]) * 1024, int(kib["VmHWM"].split()[0]) * 1024


def maps_library(process: int, name: str) -> bool:
    """Whether a process has mapped a shared library of this name."""
    return name in (PROCESSES / str(process) / "maps").read_text()


def write_trace(path: Path, trace: Sequence[TraceJob]) -> Path:
    """A trace as a file that `fastserve bench` reads."""
    path.write_text("".join(f"{trace_line(job)}\n" for job in trace), encoding="utf-8")
    return path


async def fastserve(*argv: str, limit_s: float) -> None:
    """A command of `fastserve`, as a process. Raises BenchError, with its last line, if it fails or takes longer."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, told = await asyncio.wait_for(process.communicate(), limit_s)
    except TimeoutError:
        raise BenchError(f"fastserve {argv[0]} took more than {limit_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = told.decode("utf-8", "replace").strip().splitlines()
        word = lines[-1] if lines else "no word"
        raise BenchError(f"fastserve {argv[0]} ended with {process.returncode}: {word}")


async def bench(at: Server, trace: Path, out: Path, *flags: str) -> Result:
    """Runs `fastserve bench` on a trace file; returns the content of `result.json`."""
    argv = ("--server", at.address, "--trace", str(trace), "--out", str(out), *flags)
    await fastserve("bench", *argv, limit_s=TRACE_RUN_LIMIT_S)
    result: Result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return result


def records(out: Path) -> list[dict[str, Any]]:
    """The jobs of a trace run, from its `jobs.jsonl`."""
    return [json.loads(line) for line in (out / "jobs.jsonl").read_text(encoding="utf-8").splitlines()]


def demand_no_failures(result: Result, out: Path) -> None:
    """Raises BenchError with the first error if a job of the trace run failed: its figures would mean nothing."""
    if result["failed"]:
        first = next(record["error"] for record in records(out) if record["error"] is not None)
        raise BenchError(f"{result['failed']} of {result['jobs']} jobs failed, the first with: {first}")


@asynccontextmanager
async def trace_server(
    settings: BenchSettings, name: str, flags: Sequence[str], warm_up: Path
) -> AsyncIterator[Server]:
    """A server that has served a warm-up trace, all at once."""
    async with server(settings, name, flags) as ready:
        out = settings.folder("raw", f"{name}-warm-up")
        demand_no_failures(await bench(ready, warm_up, out, "--time-scale", "0"), out)
        yield ready
