"""Python modules as processes of their own."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.builders.repository_paths import ROOT


async def start_module(
    module: str, *flags: str, prefix: Sequence[str] = (), stdout: int | None = None, stderr: int | None = None
) -> Process:
    """`PREFIX... python -m MODULE FLAG...` in the root of the repository."""
    return await asyncio.create_subprocess_exec(
        *prefix,
        sys.executable,
        "-m",
        module,
        *flags,
        stdout=stdout,
        stderr=stderr,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@asynccontextmanager
async def running_module(
    module: str, *flags: str, prefix: Sequence[str] = (), stdout: int | None = None, stderr: int | None = None
) -> AsyncIterator[Process]:
    """The same, killed at the end if it still runs."""
    process = await start_module(module, *flags, prefix=prefix, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
