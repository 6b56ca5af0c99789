"""Stands for the Service that clients dial and whose EndpointSlice the leader writes: it leads to whoever leads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 64 * 1024


class LeaderService:
    """Passes bytes on. `lead` cuts the connections to the last leader."""

    def __init__(self, leader: str) -> None:
        self._leader = leader
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    def lead(self, leader: str) -> None:
        """From now on this address leads."""
        self._leader = leader
        for connection in self._connections:
            connection.cancel()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._pass_on(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        await asyncio.wait([connection])

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._leader.split(":")
        there, back = await asyncio.open_connection(host, int(port))
        ways = [asyncio.ensure_future(_copy(reader, back)), asyncio.ensure_future(_copy(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, back):
                end.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK_BYTES):
        target.write(data)
        await target.drain()


@asynccontextmanager
async def leader_service(leader: str) -> AsyncIterator[LeaderService]:
    """A Service on loopback that leads to this address at first."""
    service = LeaderService(leader)
    server = await asyncio.start_server(service.connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    service.address = f"{host}:{port}"
    try:
        yield service
    finally:
        server.close()
        service.lead(leader)
