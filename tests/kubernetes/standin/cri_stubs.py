"""The stubs of the container runtime interface, which are made from its published proto before this is imported."""

from typing import Any

import grpc

Cri: Any = __import__("cri_api_pb2")
_GRPC: Any = __import__("cri_api_pb2_grpc")


def runtime_of(socket: str) -> Any:
    """The runtime service behind a socket."""
    return _GRPC.RuntimeServiceStub(grpc.insecure_channel(f"unix://{socket}"))
