"""A gRPC server whose calls only wait: the cost of an open stream before any service does anything.

Prints its port, then holds every call of any method until stdin ends.
"""

import asyncio
import os
import sys
from typing import Any

import grpc

from services.runtime.channel import CHANNEL_OPTIONS
from services.runtime.process import die_with_parent

METHOD = "/bare.Bare/Wait"


class _AnyMethod(grpc.GenericRpcHandler):
    """Answers every method by waiting; requests stay bytes."""

    def service(self, _: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._wait)

    @staticmethod
    async def _wait(_: bytes, __: Any) -> None:
        await asyncio.get_running_loop().create_future()


async def serve() -> None:
    """Serves until stdin ends."""
    options = [*CHANNEL_OPTIONS, ("grpc.server.max_pending_requests", 50_000)]
    server = grpc.aio.server(options=[*options, ("grpc.server.max_pending_requests_hard_limit", 100_000)])
    server.add_generic_rpc_handlers((_AnyMethod(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    die_with_parent(os.getppid())
    asyncio.run(serve())
