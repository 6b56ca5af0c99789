"""Client channels: the options shared by all links inside FastServe and all its clients."""

import asyncio
from typing import NamedTuple

import grpc

from services.runtime.tls.tls_channel import TlsChannel
from services.runtime.tls.tls_files import Certificates

MOST_MESSAGE_BYTES = 16 * 1024 * 1024
"""Larger than any valid request, so that a prompt that is too long is refused by validation, which names the limit."""


class Pings(NamedTuple):
    """Pings on calls under way, by which either side notices that the peer stands still, or that its machine has
    vanished. One is sent when nothing was heard for `interval_s`; the connection ends when nothing was heard for
    `answer_limit_s` since.

    gRPC's own threads answer them, without Python's lock. So a process that computes, or holds that lock, is not lost.
    """

    interval_s: float
    answer_limit_s: float


LINK_PINGS = Pings(1.0, 3.0)
"""Between services: a peer that stands still is noticed within 4 s. gRPC sends no more than one ping a second."""
CLIENT_PINGS = Pings(10.0, 5.0)
"""Between a client and the gateway: a network that fails for some seconds must not end a client's streams."""

LINK_ATTEMPT_LIMIT_S = 0.2
CLIENT_ATTEMPT_LIMIT_S = 5.0
"""A client's call fails with its first attempt to connect. So an attempt has enough time for a distant server, but less
time than a call, so that a server that does not respond at all is reported as unreachable.
"""

OLD_CALLS_LIMIT_S = 5.0
"""For calls on a connection that was given up."""

Options = tuple[tuple[str, int], ...]


def keepalive_options(pings: Pings) -> Options:
    """Options for pings, needed at both ends."""
    return (
        ("grpc.keepalive_time_ms", round(pings.interval_s * 1000)),
        # The limit for data that the peer's machine does not acknowledge (TCP_USER_TIMEOUT), and for nothing
        # else: how long a ping may stay unanswered is the next option, without which it is 60 s.
        ("grpc.keepalive_timeout_ms", round(pings.answer_limit_s * 1000)),
        ("grpc.http2.ping_timeout_ms", round(pings.answer_limit_s * 1000)),
    )


def channel_options(pings: Pings = LINK_PINGS, attempt_limit_s: float = LINK_ATTEMPT_LIMIT_S) -> Options:
    """Options of every channel. No server takes pings more often than every half interval of LINK_PINGS.

    `attempt_limit_s` bounds an attempt to connect, up to the server's first response, which takes two round trips.
    """
    return (
        ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
        # The links redial by themselves; gRPC's own pauses (1 s, growing to 2 min) would only add to theirs.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, this is also the time limit of an attempt.
        ("grpc.min_reconnect_backoff_ms", round(attempt_limit_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *keepalive_options(pings),
        ("grpc.http2.max_pings_without_data", 0),
        # Peers are addressed directly; a proxy from the environment must not be used.
        ("grpc.enable_http_proxy", 0),
        # Channels share no connection: a new one may reach another pod behind the same name.
        ("grpc.use_local_subchannel_pool", 1),
    )


CHANNEL_OPTIONS = channel_options()
"""For links inside FastServe."""
CLIENT_OPTIONS = channel_options(CLIENT_PINGS, attempt_limit_s=CLIENT_ATTEMPT_LIMIT_S)
"""For clients, whose server may be distant."""


def open_channel(address: str, options: Options = CHANNEL_OPTIONS, tls: Certificates | None = None) -> grpc.aio.Channel:
    """A channel to HOST:PORT, which connects at the first call. Use it as an async context manager, or close it.

    With `tls` it shows these certificates, and asks for one of their CA.
    """
    if tls is not None:
        return TlsChannel(address, tls, options)
    return grpc.aio.insecure_channel(address, options=options)


class RenewableChannel:
    """A channel to HOST:PORT whose connection can be given up for a new one: behind a Service's name, a connection
    stays with the pod that it has reached, also when the name leads to another one. Use it as an async context manager.
    """

    def __init__(self, address: str, tls: Certificates | None = None) -> None:
        self._address = address
        self._tls = tls
        self._closing: set[asyncio.Task[None]] = set()
        self.now = open_channel(address, tls=tls)
        """For the next call."""

    def renew(self) -> None:
        """Calls from now on take a new connection; those under way have a while to end on the old one."""
        task = asyncio.create_task(self.now.close(OLD_CALLS_LIMIT_S))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self.now = open_channel(self._address, tls=self._tls)

    async def __aenter__(self) -> "RenewableChannel":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.now.close()
        for task in self._closing:
            task.cancel()
