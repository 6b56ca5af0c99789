"""A peer of the tests, in a process of its own: it serves a stream and holds one to the test's server, and says on
stdout what it hears. `python -m tests.runtime.peer_process LISTEN SERVER`.

On SIGUSR1 it stops as a computing process may: its only Python thread sleeps and keeps Python's lock.
"""

import asyncio
import ctypes
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from fastserve.v1 import inference_pb2, inference_pb2_grpc
from services.runtime.channel import LINK_PINGS
from services.runtime.server import RpcServer
from tests.builders.channels import patient_channel

LOCKED_S = round(LINK_PINGS.interval_s + LINK_PINGS.answer_limit_s) + 1


class HoldingServicer(inference_pb2_grpc.InferenceServiceServicer):
    """Holds a stream open: one message at once, another when `goes_on` is set."""

    def __init__(self) -> None:
        self.began, self.goes_on, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self.began.set()
        try:
            yield inference_pb2.GenerateResponse(text="held")
            await self.goes_on.wait()
            yield inference_pb2.GenerateResponse(text="heard again")
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        return inference_pb2.ListModelsResponse()

    def register(self, server: Any) -> None:
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)


def held(channel: Any) -> Any:
    """A stream to a HoldingServicer."""
    return inference_pb2_grpc.InferenceServiceStub(channel).Generate(inference_pb2.GenerateRequest())


async def main(listen: str, server_address: str) -> None:
    servicer = HoldingServicer()
    server = RpcServer(listen, (), servicer.register)
    await server.start()
    print(server.address, flush=True)

    def keep_the_lock(*_: object) -> None:
        print("locked", flush=True)
        ctypes.PyDLL(None).sleep(LOCKED_S)
        print("unlocked", flush=True)
        servicer.goes_on.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, keep_the_lock)
    async with patient_channel(server_address) as channel:
        async for message in held(channel):
            print(message.text, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
