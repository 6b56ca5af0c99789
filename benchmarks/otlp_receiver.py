"""A receiver of OTLP traces over gRPC that keeps nothing: what traces cost a server without what they cost a collector.

Prints its address, then for every line of stdin how many spans it was sent until then, and the bytes of the requests
that brought them. Serves until stdin ends. It decodes nothing before it is asked, so that it takes as little as can be
of the cores that it shares with the server.
"""

import asyncio
import json
import sys
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
MOST_KEPT_BYTES = 256 * 1024 * 1024
"""Between two questions."""


class OtlpReceiver:
    """What was received since it was asked last, as bytes."""

    def __init__(self) -> None:
        self._requests: list[bytes] = []
        self._kept_bytes = 0
        self._spans = 0
        self._received_bytes = 0

    async def export(self, request: bytes, context: Any) -> bytes:
        """A batch of spans of one service."""
        if self._kept_bytes + len(request) > MOST_KEPT_BYTES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MOST_KEPT_BYTES} bytes are kept")
        self._requests.append(request)
        self._kept_bytes += len(request)
        return b""

    def told(self) -> dict[str, int]:
        """Spans and bytes since the start."""
        for request in self._requests:
            decoded = trace_service_pb2.ExportTraceServiceRequest.FromString(request)
            self._spans += sum(len(scope.spans) for one in decoded.resource_spans for scope in one.scope_spans)
            self._received_bytes += len(request)
        self._requests.clear()
        self._kept_bytes = 0
        return {"spans": self._spans, "bytes": self._received_bytes}


async def serve() -> None:
    """Serves until stdin ends."""
    receiver = OtlpReceiver()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(receiver.export)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(receiver.told()), flush=True)
    await server.stop(0.0)


if __name__ == "__main__":
    asyncio.run(serve())
