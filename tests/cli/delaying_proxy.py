"""A way to a server that is far away: a proxy on loopback by which every answer comes later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await reader.read(64 * 1024):
            loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)


@asynccontextmanager
async def delaying(address: str, delay_s: float) -> AsyncIterator[str]:
    """Another address of the server: what it says comes `delay_s` later, what it is told comes at once."""
    host, _, port = address.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, requests, 0.0), _pass_on(answers, writer, delay_s))

    proxy = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    finally:
        proxy.close()
