"""Running the `fastserve` command in tests: in this process, off the test's event loop, or as a process of its own."""

import asyncio
import sys

from services.cli.__main__ import main

PYTHON_FASTSERVE = (sys.executable, "-m", "services.cli")


async def fastserve(*argv: str) -> int:
    """The exit code of `fastserve ARGV`, run in a thread (the command has an event loop of its own)."""
    return await asyncio.to_thread(main, list(argv))
