"""A whole server for the length of a block: `fastserve up` as a process, its log in a file."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from services.runtime.command_line import CommandError

STOP_LIMIT_S = 60.0


class ServerAddresses(NamedTuple):
    """HOST:PORT of a server's gRPC and REST; `http` is None without a REST front. `process`: that of `fastserve up`."""

    grpc: str
    http: str | None
    process: int


@asynccontextmanager
async def running_server(
    flags: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
) -> AsyncIterator[ServerAddresses]:
    """Starts every service on free ports and yields where it serves; drains and stops them at the end. `variables` are
    added to its environment.

    Raises CommandError with the last line of the log if it can't come up.
    """
    argv = [sys.executable, "-m", "services.cli", "up", "--grpc-port", "0", "--http-port", "0"]
    argv += ["--metrics-port", "0", *flags]
    with log.open("wb") as lines:
        process = await asyncio.create_subprocess_exec(
            *argv,
            "--die-with-parent",
            str(os.getpid()),
            stdout=asyncio.subprocess.PIPE,
            stderr=lines,
            env={**os.environ, **(variables or {})},
        )
    try:
        assert process.stdout is not None, "stdout is a pipe"
        ready = (await process.stdout.readline()).decode()
        if not ready.startswith("ready "):
            await process.wait()
            raise CommandError(last_line(log))
        told = dict(word.split("=", 1) for word in ready.split()[1:])
        yield ServerAddresses(told["grpc"], told.get("http"), process.pid)
    finally:
        await _stop(process)


def last_line(log: Path) -> str:
    """The last line of a log, without the leading name of the command."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1].removeprefix("fastserve up: ") if lines else "the server ended without writing a log"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
