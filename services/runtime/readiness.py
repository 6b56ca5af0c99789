"""Carries a service's word on whether it is ready to its health service, in order."""

import asyncio

from services.runtime.server import RpcServer


class Readiness:
    """`set` is called by whoever knows, `follow` passes it on. To be made on the event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._ready = False

    def set(self, ready: bool) -> None:
        """The service is ready, or is not."""
        self._ready = ready
        self._changed.set()

    async def changed(self) -> bool:
        """Waits for the next word."""
        await self._changed.wait()
        self._changed.clear()
        return self._ready

    async def follow(self, server: RpcServer) -> None:
        """Tells the health service, for ever."""
        while True:
            await server.set_ready(await self.changed())
