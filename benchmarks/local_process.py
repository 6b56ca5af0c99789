"""One service as a process of this machine: ready when it has written its ready file, which names its ports."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

POLL_S = 0.02

Addresses = dict[str, str]
"""HOST:PORT: `grpc`, and `metrics` where there is one."""


class LocalProcess:
    """Its output goes to the end of the file `log`."""

    def __init__(self, process: asyncio.subprocess.Process, ready_file: Path, log: Path) -> None:
        self._process = process
        self._ready_file = ready_file
        self._log = log

    @classmethod
    async def begin(cls, argv: Sequence[str], name: str, folder: Path, log: Path) -> "LocalProcess":
        """Starts it; it ends with this process."""
        ready_file = folder / f"{name}.ready.json"
        ready_file.unlink(missing_ok=True)
        own = ["--ready-file", str(ready_file), "--die-with-parent", str(os.getpid())]
        with log.open("ab") as lines:
            process = await asyncio.create_subprocess_exec(
                *argv, *own, stdin=asyncio.subprocess.DEVNULL, stdout=lines, stderr=lines, start_new_session=True
            )
        return cls(process, ready_file, log)

    async def addresses(self) -> Addresses | None:
        """Waits until the service is ready; None if it ended first."""
        while self._process.returncode is None:
            if self._ready_file.exists():
                found: Addresses = json.loads(self._ready_file.read_text(encoding="utf-8"))
                return found
            await asyncio.sleep(POLL_S)
        return None

    async def ended(self) -> str:
        """Waits for the end; the last line of the log."""
        await self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"

    async def stop(self, limit_s: float) -> None:
        """SIGTERM, then SIGKILL after `limit_s`."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), limit_s)
                return
