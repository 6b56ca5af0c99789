"""Passes changes of a service's readiness on to its health service, in order."""

import asyncio

from services.runtime.server import RpcServer


class Readiness:
    """`set` records whether the service is ready, `follow` passes it on. Must be created on the event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._ready = False

    def set(self, ready: bool) -> None:
        """Set whether the service is ready."""
        self._ready = ready
        self._changed.set()

    async def changed(self) -> bool:
        """Waits for the next change. Returns whether the service is ready."""
        await self._changed.wait()
        self._changed.clear()
        return self._ready

    async def follow(self, server: RpcServer) -> None:
        """Updates the health service, forever."""
        while True:
            await server.set_ready(await self.changed())
