"""The client commands' side of the public API: one channel to a gateway, over gRPC.

Failures become CommandError with an exit code: UNREACHABLE if the server can't be reached or is lost, REFUSED if it
refuses.
"""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastserve.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from services.domain.generation import GenerateRequest, ServedModel, StreamMessage, StreamProgress
from services.domain.server_status import ServerStatus
from services.runtime.channel import CLIENT_OPTIONS, open_channel
from services.runtime.command_line import CommandError, ExitCode, ServerAccess
from services.wire.client_gateway import (
    models_from_wire,
    piece_from_wire,
    progress_from_wire,
    request_to_wire,
)
from services.wire.operator_scheduler import status_from_wire

CALL_LIMIT_S = 10.0


def encode(request: GenerateRequest) -> bytes:
    """A request as wire bytes. Raises CommandError (REFUSED) for a value that its field can't carry."""
    try:
        return request_to_wire(request).SerializeToString()
    except (ValueError, TypeError) as error:
        raise CommandError(f"refused: {error}", ExitCode.REFUSED) from error


def failure(server: str, error: grpc.aio.AioRpcError) -> CommandError:
    """An RPC's failure as a message for the user and an exit code."""
    from services.domain.errors import UnreachableError
    from services.runtime.error_statuses import from_grpc

    typed = from_grpc(error)
    if isinstance(typed, UnreachableError):
        return CommandError(f"{server} can't be reached: {typed}", ExitCode.UNREACHABLE)
    text = str(typed)
    name = error.code().name
    return CommandError(text if text.startswith(name) else f"{name}: {text}", ExitCode.REFUSED)


def _channel_to(access: ServerAccess) -> grpc.aio.Channel:
    if not access.tls:
        return open_channel(access.address, CLIENT_OPTIONS)
    from services.domain.errors import InvalidFieldError
    from services.runtime.tls.tls_channel import tls_options
    from services.runtime.tls.tls_files import check_ca

    try:
        ca = None if access.ca is None else check_ca("--tls-ca", access.ca)
    except InvalidFieldError as error:
        raise CommandError(str(error), ExitCode.REFUSED) from None
    credentials = grpc.ssl_channel_credentials(ca)
    return grpc.aio.secure_channel(access.address, credentials, options=tls_options(CLIENT_OPTIONS, access.name))


class GatewayClient:
    """A channel to one gateway; an async context manager. Raises CommandError for a CA that can't be used."""

    def __init__(self, server: str | ServerAccess) -> None:
        access = ServerAccess(server) if isinstance(server, str) else server
        self.server = access.address
        self._metadata = None if access.api_key is None else (("authorization", f"Bearer {access.api_key}"),)
        self._channel = _channel_to(access)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        # Requests are serialized by `encode`: a load generator does so before its clock starts.
        self._generate: Any = self._channel.unary_stream(
            "/fastserve.v1.InferenceService/Generate",
            request_serializer=None,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def models(self) -> tuple[ServedModel, ...]:
        """The served models. Raises CommandError, as all calls but `ready` do."""
        try:
            return models_from_wire(
                await self._inference.ListModels(
                    inference_pb2.ListModelsRequest(), timeout=CALL_LIMIT_S, metadata=self._metadata
                )
            )
        except grpc.aio.AioRpcError as error:
            raise failure(self.server, error) from None

    async def status(self, max_jobs: int = 0) -> ServerStatus:
        """The server's status now, with up to `max_jobs` jobs one by one."""
        request = admin_pb2.GetStatusRequest(max_jobs=max_jobs)
        try:
            response = await self._admin.GetStatus(request, timeout=CALL_LIMIT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise failure(self.server, error) from None
        return status_from_wire(response.status)

    async def watch_status(self, interval_s: float, max_jobs: int = 0) -> AsyncIterator[ServerStatus]:
        """The server's status at once and then every `interval_s`, until the caller stops; `max_jobs` as above."""
        request = admin_pb2.WatchStatusRequest(interval_s=interval_s, max_jobs=max_jobs)
        call = self._admin.WatchStatus(request, metadata=self._metadata)
        try:
            async for response in call:
                yield status_from_wire(response.status)
        except grpc.aio.AioRpcError as error:
            raise failure(self.server, error) from None
        finally:
            call.cancel()

    async def ready(self) -> bool:
        """Whether the gateway accepts requests; False also if it can't be reached."""
        try:
            response = await self._health.Check(
                health_pb2.HealthCheckRequest(service="readiness"), timeout=CALL_LIMIT_S
            )
        except grpc.aio.AioRpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    async def complete(self, request: bytes, limit_s: float | None = None) -> AsyncIterator[StreamMessage]:
        """Streams the completion of an encoded request; `limit_s` seconds after the call it is given up."""
        call = self._generate(request, timeout=limit_s, metadata=self._metadata)
        try:
            async for message in call:
                yield piece_from_wire(message)
        except grpc.aio.AioRpcError as error:
            raise failure(self.server, error) from None
        finally:
            call.cancel()

    async def progress(self, request: bytes, limit_s: float | None = None) -> AsyncIterator[StreamProgress]:
        """Like `complete`, for a caller that only counts tokens."""
        call = self._generate(request, timeout=limit_s, metadata=self._metadata)
        try:
            async for message in call:
                yield progress_from_wire(message)
        except grpc.aio.AioRpcError as error:
            raise failure(self.server, error) from None
        finally:
            call.cancel()
