"""A channel over TLS that outlives its certificates.

A channel of gRPC shows the certificate that it was made with for as long as it lives, also when it connects again. So
here a call that begins after the files have changed gets a new one. An older one is closed when its last call has
ended: no stream is lost.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import grpc

from services.runtime.tls.tls_files import Certificates, Pems

Options = tuple[tuple[str, int | str], ...]

LEAST_ATTEMPT_MS = 1000
"""An attempt to connect has more round trips with TLS, and more to compute."""


def tls_options(options: tuple[tuple[str, int], ...], peer_name: str | None) -> Options:
    """The options of a channel with TLS. `peer_name`: the server's certificate must have it, instead of the host."""
    name = "grpc.min_reconnect_backoff_ms"
    changed: list[tuple[str, int | str]] = [
        (key, max(value, LEAST_ATTEMPT_MS) if key == name else value) for key, value in options
    ]
    if peer_name is not None:
        changed.append(("grpc.ssl_target_name_override", peer_name))
    return tuple(changed)


class _Life:
    """The channel of one set of certificates."""

    __slots__ = ("channel", "open_calls", "pems")

    def __init__(self, pems: Pems, channel: grpc.aio.Channel) -> None:
        self.pems = pems
        self.channel = channel
        self.open_calls = 0


class TlsChannel(grpc.aio.Channel):
    """A channel to HOST:PORT that shows these certificates, and asks for one of their CA."""

    def __init__(self, address: str, certificates: Certificates, options: tuple[tuple[str, int], ...]) -> None:
        self._address = address
        self._options = tls_options(options, certificates.files.peer_name)
        self._certificates = certificates
        self._life = self._begin(certificates.pems())
        self._older: set[_Life] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def _begin(self, pems: Pems) -> _Life:
        credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        return _Life(pems, grpc.aio.secure_channel(self._address, credentials, options=self._options))

    def _now(self) -> _Life:
        pems = self._certificates.pems()
        if pems is not self._life.pems:
            old, self._life = self._life, self._begin(pems)
            self._older.add(old)
            self._close_if_idle(old)
        return self._life

    def _close_if_idle(self, life: _Life) -> None:
        if life.open_calls == 0 and life in self._older:
            self._older.remove(life)
            closing = asyncio.ensure_future(life.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _ended(self, life: _Life, _: object) -> None:
        life.open_calls -= 1
        self._close_if_idle(life)

    def _calls(self, kind: str, method: str, *codecs: Any, **more: Any) -> Callable[..., Any]:
        def begin(*arguments: Any, **named: Any) -> Any:
            life = self._now()
            call = getattr(life.channel, kind)(method, *codecs, **more)(*arguments, **named)
            life.open_calls += 1
            call.add_done_callback(partial(self._ended, life))
            return call

        return begin

    # --- grpc.aio.Channel --------------------------------------------------------------------------------------------

    def unary_unary(self, method: str, *codecs: Any, **more: Any) -> Any:
        return self._calls("unary_unary", method, *codecs, **more)

    def unary_stream(self, method: str, *codecs: Any, **more: Any) -> Any:
        return self._calls("unary_stream", method, *codecs, **more)

    def stream_unary(self, method: str, *codecs: Any, **more: Any) -> Any:
        return self._calls("stream_unary", method, *codecs, **more)

    def stream_stream(self, method: str, *codecs: Any, **more: Any) -> Any:
        return self._calls("stream_stream", method, *codecs, **more)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        lives = [self._life, *self._older]
        self._older.clear()
        await asyncio.gather(*(life.channel.close(grace) for life in lives), *self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._now().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._life.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._now().channel.channel_ready()
