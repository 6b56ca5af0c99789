"""One process of a service: how it is started, when it is ready, its output and its end.

A service is ready when it has written its ready file, which also names its ports. Its output goes to the log of `up`
under its name; its last line is kept, because that says why it ended.
"""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.up.up_log import TEXT_LOG, UpLog, message_of

READY_POLL_S = 0.02
LONGEST_LINE_BYTES = 64 * 1024
PIPE_END_LIMIT_S = 1.0

_LOG_HEAD = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z? [A-Z]+ \w+: ")


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """The addresses of a service, HOST:PORT each. The REST front has `http` alone; `probe` is where health is served
    without TLS.
    """

    grpc: str
    metrics: str | None
    http: str | None = None
    probe: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """How to run a service. `build` makes its command line from the addresses known so far: those of `after`, and
    from its second process on also its own.

    It must accept `--ready-file PATH` and `--die-with-parent PID` as well.
    """

    name: str
    build: Callable[[Mapping[str, ServiceAddresses]], list[str]]
    after: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    stop_limit_s: float = 10.0


def cause_of_death(status: int) -> str:
    """An exit status as asyncio gives it, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def reason_of(name: str, last_line: str, status: int) -> str:
    """The last line that a service wrote, without log prefix and name; its exit status if it wrote none."""
    service = name.partition("-")[0]  # worker-1 calls itself worker
    line = message_of(last_line) or last_line
    text = _LOG_HEAD.sub("", line).removeprefix(f"fastserve {service}: ").strip()
    return text or cause_of_death(status)


class SupervisedProcess:
    """One process of a service."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready_file: Path, log: UpLog = TEXT_LOG) -> None:
        self.name = name
        self._process = process
        self._log = log
        self.began_s = time.monotonic()
        self.last_line = ""
        self._ready_file = ready_file
        self._pump = asyncio.create_task(self._pass_on())

    async def _pass_on(self) -> None:
        """Copies the process's lines to the log under its name."""
        assert self._process.stdout is not None, self.name
        rest = b""
        while data := await self._process.stdout.read(LONGEST_LINE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LONGEST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            self._write(lines)
        if rest:
            self._write([rest])

    def _write(self, lines: Sequence[bytes]) -> None:
        texts = [line.decode("utf-8", "replace").rstrip() for line in lines]
        self.last_line = next((text for text in reversed(texts) if text.strip()), self.last_line)
        self._log.pass_on(self.name, texts)

    async def addresses(self) -> ServiceAddresses | None:
        """Waits until the service is ready; None if it ended first."""
        while self._process.returncode is None:
            if self._ready_file.exists():
                ready = json.loads(self._ready_file.read_text(encoding="utf-8"))
                return ServiceAddresses(
                    ready.get("grpc", ""), ready.get("metrics"), ready.get("http"), ready.get("probe")
                )
            await asyncio.sleep(READY_POLL_S)
        return None

    @property
    def status(self) -> int | None:
        """The exit status as asyncio gives it; None while the process runs."""
        return self._process.returncode

    async def ended(self) -> str:
        """Waits for the end and returns its reason."""
        status = await self._process.wait()
        with suppress(TimeoutError):
            # A child process of the service may hold the pipe open.
            await asyncio.wait_for(asyncio.shield(self._pump), PIPE_END_LIMIT_S)
        return reason_of(self.name, self.last_line, status)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if the process still runs."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, limit_s: float) -> bool:
        """SIGTERM, then SIGKILL after `limit_s`. False if it had to be killed."""
        self.send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), limit_s)
            return True
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self._process.wait()
            return False


async def begin(
    command: ServiceCommand, argv: Sequence[str], ready_file: Path, log: UpLog = TEXT_LOG
) -> SupervisedProcess:
    """Starts a process of a service, in a session of its own."""
    ready_file.unlink(missing_ok=True)  # noqa: ASYNC240 (a file of ours, in memory)
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # gRPC's core logs in its own format what the services log anyway.
        env={"GRPC_VERBOSITY": "NONE", **os.environ, **command.environ},
        start_new_session=True,
    )
    return SupervisedProcess(command.name, process, ready_file, log)
