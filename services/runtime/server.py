"""The gRPC server of every service: health, reflection, conversion of typed errors to statuses, bounded messages, and a
drain at the end.

Handlers raise typed errors; the interceptor converts them to statuses with the one table, in this one place. Any other
exception is a bug: it is logged here, once, and the client gets INTERNAL. A request that can't be decoded (because of
invalid UTF-8 in a string, for example) would end as UNKNOWN inside gRPC. So the interceptor replaces the deserializer
by one that can't fail, and refuses the request with INVALID_ARGUMENT. Handlers of streams must read by iterating over
their request iterator, not with `context.read()`.
"""

import asyncio
import errno
import inspect
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from services.domain.errors import AddressInUseError, FastServeError, InvalidFieldError
from services.runtime.channel import LINK_PINGS, MOST_MESSAGE_BYTES, Options, Pings, keepalive_options
from services.runtime.error_statuses import ErrorStatus, status_of, to_grpc
from services.runtime.settings import bare_host, join_address, split_address
from services.runtime.tls.peer_names import PeerNameInterceptor
from services.runtime.tls.server_credentials import server_credentials
from services.runtime.tls.tls_files import TlsFiles

_log = logging.getLogger(__name__)

LIVENESS = "liveness"
READINESS = "readiness"
LINKS = "links"
"""Whether peers may dial. Who is asked for readiness by a Service that its own peers dial would never become ready: a
scheduler is ready when a worker has joined, and the worker finds it by that Service.
"""


LEAST_PING_INTERVAL_S = LINK_PINGS.interval_s / 2
"""Half of the shortest interval of any client, as pings may arrive early."""


def server_options(pings: Pings = LINK_PINGS, least_ping_interval_s: float = LEAST_PING_INTERVAL_S) -> Options:
    """Options for a server that sends such pings. A client that pings more often than every `least_ping_interval_s` is
    cut off; by gRPC's default, more often than every 5 minutes.
    """
    return (
        ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
        # Otherwise two servers can silently share a port, each getting half of the calls.
        ("grpc.so_reuseport", 0),
        *keepalive_options(pings),
        # Calls that have arrived but not started. With gRPC's defaults, 1000 and 3000, calls of a burst are cancelled.
        ("grpc.server.max_pending_requests", 50_000),
        ("grpc.server.max_pending_requests_hard_limit", 100_000),
        ("grpc.http2.min_ping_interval_without_data_ms", round(least_ping_interval_s * 1000)),
    )


class _Undecodable:
    """Stands for a request that can't be decoded."""


_UNDECODABLE = _Undecodable()


def _undecodable_error() -> InvalidFieldError:
    return InvalidFieldError("request", "can't be decoded: it is malformed, or a string in it is not valid UTF-8")


def _safe(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserializer is None:
        return None

    def deserialize(data: bytes) -> Any:
        try:
            return deserializer(data)
        except (DecodeError, UnicodeDecodeError):
            return _UNDECODABLE

    return deserialize


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if request is _UNDECODABLE:
            raise _undecodable_error()
        yield request


def _checked_input(request_or_iterator: Any, streams: bool) -> Any:
    if streams:
        return _checked(request_or_iterator)
    if request_or_iterator is _UNDECODABLE:
        raise _undecodable_error()
    return request_or_iterator


async def _abort(context: Any, method: str, error: Exception) -> NoReturn:
    """Ends the call with the error's status."""
    if isinstance(error, grpc.aio.AbortError):
        # The handler has set the status itself.
        raise error
    if isinstance(error, FastServeError):
        status = status_of(error)
    else:
        status = ErrorStatus(grpc.StatusCode.INTERNAL, "internal error; see the server's log")
    if status.code is grpc.StatusCode.INTERNAL:
        _log.error("%s failed", method, exc_info=error)
    if context.done():
        # The client is gone, so the status would not be read.
        raise asyncio.CancelledError from error
    told = to_grpc(status)
    await context.abort(told.code, told.details, told.trailing_metadata)
    raise AssertionError("abort raises")


def _unary(behavior: Callable[..., Awaitable[Any]], method: str, streams: bool) -> Callable[..., Awaitable[Any]]:
    async def call(request_or_iterator: Any, context: Any) -> Any:
        try:
            return await behavior(_checked_input(request_or_iterator, streams), context)
        except Exception as error:
            await _abort(context, method, error)

    return call


def _stream(behavior: Callable[..., Any], method: str, streams: bool) -> Callable[..., AsyncIterator[Any]]:
    async def call(request_or_iterator: Any, context: Any) -> AsyncIterator[Any]:
        try:
            # Closed when the call ends, so that a handler's `finally` need not wait for the garbage collector.
            async with aclosing(behavior(_checked_input(request_or_iterator, streams), context)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await _abort(context, method, error)

    return call


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Converts errors of all handlers to statuses, and refuses undecodable requests."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        changes: dict[str, Any] = {"request_deserializer": _safe(handler.request_deserializer)}
        for kind in ("unary_unary", "stream_unary", "unary_stream", "stream_stream"):
            behavior = getattr(handler, kind)
            if behavior is None:
                continue
            streams = kind.startswith("stream")
            if inspect.isasyncgenfunction(behavior):
                changes[kind] = _stream(behavior, method, streams)
            else:
                changes[kind] = _unary(behavior, method, streams)
        return handler._replace(**changes)


def probe_listening(address: str) -> socket.socket:
    """A socket that listens on an address, whose peers nobody accepts: while it is open, nobody else can.

    Raises AddressInUseError with the reason if the address can't be listened on; gRPC does not report the reason.
    """
    host, port = split_address(address)
    probe = None
    try:
        family, _, _, _, place = socket.getaddrinfo(
            bare_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        probe = socket.socket(family, socket.SOCK_STREAM)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)
        probe.listen(1)
    except OSError as error:
        if probe is not None:
            probe.close()
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise AddressInUseError(f"can't listen on {address}: {reason}") from None
    return probe


def _listen(server: grpc.aio.Server, address: str, tls: TlsFiles | None) -> str:
    """Has the server listen; returns HOST:PORT with the actual port."""
    probe_listening(address).close()
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, server_credentials(tls))
    except RuntimeError as error:
        # The probe succeeded, so the reason is unknown: pass gRPC's message on.
        raise AddressInUseError(f"can't listen on {address}: {error}") from None
    return join_address(split_address(address).host, port)


class RpcServer:
    """A grpc.aio server. `register` adds the servicers; `service_names` are their full names, for health and
    reflection.

    Health: "", `liveness` and `links` are SERVING from the start; `readiness` and the service names follow `set_ready`.
    With `tls` the server speaks TLS alone, and with its CA only to callers with a certificate of it.
    """

    def __init__(
        self,
        address: str,
        service_names: Sequence[str],
        register: Callable[[grpc.aio.Server], None],
        options: Options | None = None,
        *,
        tls: TlsFiles | None = None,
        probe_address: str | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.address = address
        """HOST:PORT as requested; after `start` with the actual port."""
        self.probe_address = probe_address
        """The same for where health alone is served, without TLS."""
        self._service_names = tuple(service_names)
        self._tls = tls
        if tls is not None and tls.ca is not None and tls.peer_name is not None:
            interceptors = (PeerNameInterceptor(tls.peer_name), *interceptors)
        self._server = grpc.aio.server(
            interceptors=(EdgeInterceptor(), *interceptors), options=options or server_options()
        )
        self._probes: grpc.aio.Server | None = None
        self._health = health_aio.HealthServicer()
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._service_names, "grpc.health.v1.Health", reflection.SERVICE_NAME), self._server
        )

    async def start(self) -> None:
        """Starts listening, not ready yet. Raises AddressInUseError; InvalidFieldError for unusable certificates."""
        self.address = _listen(self._server, self.address, self._tls)
        if self.probe_address is not None:
            self._probes = grpc.aio.server(options=server_options())
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probes)
            self.probe_address = _listen(self._probes, self.probe_address, None)
        serving = health_pb2.HealthCheckResponse.SERVING
        await self._health.set("", serving)
        await self._health.set(LIVENESS, serving)
        await self._health.set(LINKS, serving)
        await self.set_ready(False)
        await self._server.start()
        if self._probes is not None:
            await self._probes.start()

    async def set_ready(self, ready: bool) -> None:
        """Sets the health of `readiness` and of every service."""
        states = health_pb2.HealthCheckResponse
        for name in (READINESS, *self._service_names):
            await self._health.set(name, states.SERVING if ready else states.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, gives those under way `grace_s` seconds to end, then cancels them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
        if self._probes is not None:
            await self._probes.stop(0)
