"""Client channels: the options that every link inside FastServe and every client of it shares, and the back-off of a
link that dials again.
"""

import grpc

MOST_MESSAGE_BYTES = 16 * 1024 * 1024
"""Larger than any valid request, so that a prompt that is too large is refused by validation, which names the limit."""

PING_INTERVAL_S = 10.0
"""Pause between two pings on calls under way, by which either side finds out about a peer whose machine vanished."""
_PING_ANSWER_LIMIT_S = 5.0
LINK_ATTEMPT_LIMIT_S = 0.2
CLIENT_ATTEMPT_LIMIT_S = 5.0
"""A client's call fails with its first attempt to connect; so that one has time for a server far away, and yet less
than a call has, so that a server that says nothing at all is told as one that can't be reached.
"""

Options = tuple[tuple[str, int], ...]


def keepalive_options(ping_interval_s: float) -> Options:
    """What both ends need to ping."""
    return (
        ("grpc.keepalive_time_ms", round(ping_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(_PING_ANSWER_LIMIT_S * 1000)),
    )


def channel_options(ping_interval_s: float = PING_INTERVAL_S, attempt_limit_s: float = LINK_ATTEMPT_LIMIT_S) -> Options:
    """Options of every channel. Its server must be told of the same interval.

    `attempt_limit_s` bounds an attempt to connect, up to the server's first word, for which it takes two round trips.
    """
    return (
        ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
        # The links dial again by themselves; gRPC's own pauses (1 s, growing to 2 min) would only make theirs longer.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # In spite of its name also what an attempt may take.
        ("grpc.min_reconnect_backoff_ms", round(attempt_limit_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        *keepalive_options(ping_interval_s),
        ("grpc.http2.max_pings_without_data", 0),
        # The peers are named by their addresses; a proxy of the environment has no part in it.
        ("grpc.enable_http_proxy", 0),
    )


CHANNEL_OPTIONS = channel_options()
"""Of the links inside FastServe."""
CLIENT_OPTIONS = channel_options(attempt_limit_s=CLIENT_ATTEMPT_LIMIT_S)
"""Of clients, whose server may be far away."""


def open_channel(address: str, options: Options = CHANNEL_OPTIONS) -> grpc.aio.Channel:
    """A channel to HOST:PORT. It connects at the first call; use it as an async context manager, or close it."""
    return grpc.aio.insecure_channel(address, options=options)


class Backoff:
    """Pauses between attempts to dial: they double from `first_s` to `most_s`; after `reset` they begin anew."""

    def __init__(self, first_s: float = 0.05, most_s: float = 1.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The pause before the next attempt."""
        pause_s = self._next_s
        self._next_s = min(self._next_s * 2, self._most_s)
        return pause_s

    def reset(self) -> None:
        """To be called when an attempt succeeded."""
        self._next_s = self._first_s
