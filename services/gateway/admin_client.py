"""The scheduler's AdminService as the gateway calls it, to forward it and to read the status during a scrape."""

from collections.abc import AsyncIterator

import grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc
from services.domain.server_status import ServerStatus
from services.runtime.channel import RenewableChannel
from services.runtime.error_statuses import from_grpc
from services.wire.operator_scheduler import status_from_wire

ADMIN_LIMIT_S = 5.0


class AdminClient:
    """AdminService of the scheduler. Failures are typed errors."""

    def __init__(self, channel: RenewableChannel) -> None:
        self._channel = channel

    @property
    def _stub(self) -> "admin_pb2_grpc.AdminServiceAsyncStub":
        return admin_pb2_grpc.AdminServiceStub(self._channel.now)

    async def status(self, request: admin_pb2.GetStatusRequest) -> admin_pb2.GetStatusResponse:
        try:
            return await self._stub.GetStatus(request, timeout=ADMIN_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None

    async def server_status(self, limit_s: float) -> ServerStatus:
        """What the metrics show."""
        try:
            response = await self._stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=limit_s)
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None
        return status_from_wire(response.status)

    async def watch(self, request: admin_pb2.WatchStatusRequest) -> AsyncIterator[admin_pb2.WatchStatusResponse]:
        call = self._stub.WatchStatus(request)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_grpc(error) from None
        finally:
            call.cancel()
