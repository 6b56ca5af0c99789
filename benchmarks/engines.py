"""The other end of an engine's process (engine_process.py): starts it, asks it, ends it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.settings import MAX_BATCH_TOKENS, BenchError, BenchSettings

START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 900.0
STOP_LIMIT_S = 10.0

Figures = dict[str, Any]


class EngineProcess:
    """An engine in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self.threads = 0

    async def answer(self, limit_s: float) -> Figures:
        """The next answer of the process. Raises BenchError if it ends or does not answer in time."""
        assert self._process.stdout is not None, "stdout is a pipe"
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError:
            raise BenchError(f"the engine did not answer within {limit_s:.0f} s") from None
        if not line:
            told = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise BenchError(f"the engine's process ended: {told[-1] if told else 'no output'}")
        figures: Figures = json.loads(line)
        return figures

    async def ask(self, do: str, **arguments: object) -> Figures:
        """The engine's answer to a request. Raises BenchError."""
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        return await self.answer(ANSWER_LIMIT_S)


@asynccontextmanager
async def engine(settings: BenchSettings, model: Path, *flags: str) -> AsyncIterator[EngineProcess]:
    """An engine of this model that is ready, made with the flags that servers get."""
    argv = [sys.executable, "-m", "benchmarks.engine_process", "--parent", str(os.getpid())]
    argv += ["--max-batch-tokens", str(MAX_BATCH_TOKENS), "--model", str(model), *settings.engine_flags(), *flags]
    log = settings.folder("logs") / f"engine-{model.name}.log"
    with log.open("wb") as lines:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=lines)
    try:
        made = EngineProcess(process, log)
        made.threads = (await made.answer(START_LIMIT_S))["threads"]
        yield made
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None, "stdin is a pipe"
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
