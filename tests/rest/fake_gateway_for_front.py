"""The gateway's end of FrontLink: it notes the calls, and ends each with a status that the test chose."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.rpc import status_pb2

from fastserve.v1 import front_pb2, front_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.runtime.server import RpcServer


class FakeGatewayForFront(front_pb2_grpc.FrontServiceServicer, inference_pb2_grpc.InferenceServiceServicer):
    """`end` is how every call of OpenAiService ends, after the `pieces`."""

    def __init__(self, end: status_pb2.Status, pieces: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._end = end
        self._pieces = pieces
        self.calls: list[front_pb2.FrontCall] = []
        self.metadata: list[dict[str, Any]] = []

    def register(self, server: grpc.aio.Server) -> None:
        front_pb2_grpc.add_FrontServiceServicer_to_server(self, server)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, server)

    async def FrontLink(  # type: ignore[override]
        self, requests: AsyncIterator[front_pb2.FrontLinkRequest], context: Any
    ) -> None:
        await context.send_initial_metadata(())
        async for request in requests:
            if not request.HasField("call"):
                continue
            self.calls.append(request.call)
            call_id = request.call.call_id
            pieces = [
                front_pb2.FrontPiece(call_id=call_id, content_type=kind, data=data) for kind, data in self._pieces
            ]
            pieces.append(front_pb2.FrontPiece(call_id=call_id, end=self._end))
            await context.write(front_pb2.FrontLinkResponse(pieces=pieces))

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        yield inference_pb2.GenerateResponse(request_id="none")

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        self.metadata.append(dict(context.invocation_metadata()))
        return inference_pb2.ListModelsResponse()


@asynccontextmanager
async def serving_fronts(gateway: FakeGatewayForFront) -> AsyncIterator[str]:
    """Its HOST:PORT."""
    server = RpcServer("127.0.0.1:0", (), gateway.register)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0.0)
