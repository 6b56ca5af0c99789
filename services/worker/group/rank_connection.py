"""A rank's connection to its leader: it dials, says what it is, and then hears and speaks until the connection ends.
Threads and sockets only: no event loop, no gRPC.

One thread reads and passes on what the leader says; another one writes, so that the stepping thread never waits for a
socket. The leader sends a sign of life several times within the silence limit, which is answered at once: a rank that
stands still is known to its leader, and a leader that stands still to its ranks.
"""

import logging
import queue
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from services.domain.errors import FastServeError, PeerMismatchError, UnreachableError
from services.runtime.backoff import Backoff
from services.runtime.settings import bare_host, split_address
from services.worker.group.group_wire import (
    LENGTH_BYTES,
    PONG_FRAME,
    from_rank_frame,
    hello_frame,
    layers_of,
    length_of,
    question_frame,
    to_rank_of,
    welcome_of,
)
from services.worker.group.messages import FromRank, RankFacts, RankIdentity, ToRank

_log = logging.getLogger(__name__)

CONNECT_LIMIT_S = 5.0
HELLO_LIMIT_S = 10.0
PAUSE_JITTER = 0.5
MOST_UNSENT_FRAMES = 10_000


def ask_layers(address: Callable[[], str], identity: RankIdentity) -> tuple[int, ...]:
    """The first layers of the stages, which the leader knows. Dials until it answers. Raises PeerMismatchError when the
    leader refuses this rank.
    """
    backoff = Backoff()
    was_told = False
    pause = threading.Event()
    while True:
        try:
            host, port = split_address(address())
            with socket.create_connection((bare_host(host), port), timeout=CONNECT_LIMIT_S) as connection:
                connection.settimeout(HELLO_LIMIT_S)
                connection.sendall(question_frame(identity))
                return layers_of(_read_message(connection))
        except PeerMismatchError:
            raise
        except (FastServeError, OSError) as error:
            if not was_told:
                _log.warning("the leader does not tell the layers of the stages yet: %s; asking again", error)
            was_told = True
        pause.wait(backoff.next_s() * random.uniform(1.0 - PAUSE_JITTER, 1.0))


class LeaderConnection:
    """The connection to the leader, made again whenever it ends. `address` may change between two attempts."""

    def __init__(
        self,
        address: Callable[[], str],
        facts: RankFacts,
        on_message: Callable[[ToRank], None],
        on_lost: Callable[[], None],
        on_joined: Callable[[], None] = lambda: None,
    ) -> None:
        self._address = address
        self._facts = facts
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_joined = on_joined
        self._unsent: queue.Queue[bytes | None] = queue.Queue(MOST_UNSENT_FRAMES)

    def say(self, message: FromRank) -> None:
        """Sends a message, from any thread. What is said while nobody is connected is lost."""
        self._put(from_rank_frame(message))

    def run(self) -> None:
        """Connects again and again. Raises PeerMismatchError when the leader refuses this rank."""
        backoff = Backoff()
        was_told = False
        pause = threading.Event()
        while True:
            try:
                self._connect(backoff)
            except PeerMismatchError:
                raise
            except (FastServeError, OSError) as error:
                if not was_told:
                    _log.warning("no connection to the leader: %s; dialling again", error)
                was_told = isinstance(error, OSError)
            pause.wait(backoff.next_s() * random.uniform(1.0 - PAUSE_JITTER, 1.0))

    def _connect(self, backoff: Backoff) -> None:
        """One connection, until it ends: always raises."""
        address = self._address()
        host, port = split_address(address)
        with socket.create_connection((bare_host(host), port), timeout=CONNECT_LIMIT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(HELLO_LIMIT_S)
            connection.sendall(hello_frame(self._facts))
            connection.settimeout(welcome_of(_read_message(connection)))
            _log.info("rank %d has joined its leader at %s", self._facts.rank, address)
            backoff.reset()
            self._unsent = queue.Queue(MOST_UNSENT_FRAMES)
            writer = threading.Thread(
                target=self._write, args=(connection, self._unsent), daemon=True, name="to-leader"
            )
            writer.start()
            self._on_joined()
            try:
                while True:
                    message = to_rank_of(_read_message(connection))
                    if message is None:
                        self._put(PONG_FRAME)
                    else:
                        self._on_message(message)
            finally:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                self._put(None)
                writer.join()
                self._on_lost()

    def _put(self, frame: bytes | None) -> None:
        # If the leader does not read, its signs of life fail to come, and so the connection ends.
        with suppress(queue.Full):
            self._unsent.put_nowait(frame)

    @staticmethod
    def _write(connection: socket.socket, unsent: "queue.Queue[bytes | None]") -> None:
        with suppress(OSError):  # the reading thread says why
            while (frame := unsent.get()) is not None:
                connection.sendall(frame)


def _read_message(connection: socket.socket) -> bytes:
    return _read(connection, length_of(_read(connection, LENGTH_BYTES)))


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            piece = connection.recv(min(count - len(data), 1 << 20))
        except TimeoutError:
            raise UnreachableError("the leader is silent") from None
        if not piece:
            raise UnreachableError("the leader closed the connection")
        data += piece
    return bytes(data)
