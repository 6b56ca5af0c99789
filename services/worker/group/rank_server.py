"""Where the other ranks of a group connect to their leader, on its event loop.

A rank whose hello does not fit is refused with the field that differs. Of two connections of the same rank the newer
one counts: the older one's process is gone, or about to notice. A rank that says nothing for the silence limit is lost,
although its process may live on: it may stand still.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from services.domain.errors import AddressInUseError, FastServeError, PeerMismatchError
from services.runtime.settings import bare_host, join_address, split_address
from services.worker.group.group_wire import (
    LENGTH_BYTES,
    MOST_FRAME_BYTES,
    PING_FRAME,
    from_rank_of,
    hello_of,
    layers_frame,
    length_of,
    question_of,
    refusal_frame,
    to_rank_frame,
    welcome_frame,
)
from services.worker.group.messages import FromRank, RankFacts, RankIdentity, ToRank

_log = logging.getLogger(__name__)

HELLO_LIMIT_S = 10.0
PINGS_IN_LIMIT = 6
MOST_UNSENT_BYTES = 4 * MOST_FRAME_BYTES


class HearsConnections(Protocol):
    """What the leader makes of connections. `check` raises PeerMismatchError for a rank that does not fit."""

    def check(self, facts: RankFacts) -> None: ...
    def joined(self, facts: RankFacts) -> None: ...
    def lost(self, rank: int, reason: str) -> None: ...
    def said(self, rank: int, message: FromRank) -> None: ...


class RankServer:
    """The connections of the other ranks. Those that ask, and fit the leader's `own` rank, are told the stages' layers
    from the start; none is taken before somebody `hears` them.
    """

    def __init__(self, own: RankIdentity, first_layers: Sequence[int], silence_limit_s: float) -> None:
        self._own = own
        self._first_layers = first_layers
        self._silence_limit_s = silence_limit_s
        self._hears: HearsConnections | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listens; returns HOST:PORT. Raises AddressInUseError."""
        host, port = split_address(address)
        try:
            self._server = await asyncio.start_server(self._serve, bare_host(host), port, reuse_address=True)
        except OSError as error:
            raise AddressInUseError(f"--leader: can't listen on {address}: {error.strerror}") from None
        return join_address(host, self._server.sockets[0].getsockname()[1])

    def attach(self, hears: "HearsConnections") -> None:
        """Takes ranks from now on."""
        self._hears = hears

    async def stop(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers.values()):
            writer.close()

    def tell(self, rank: int, message: ToRank) -> None:
        """Sends a message; without effect if the rank is not connected."""
        writer = self._writers.get(rank)
        if writer is None:
            return
        writer.write(to_rank_frame(message))
        if writer.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        facts: RankFacts | None = None
        reason = "its connection ended"
        try:
            facts = await self._welcome(reader, writer)
            if facts is not None:
                await self._listen(facts.rank, reader, writer)
        except TimeoutError:
            reason = f"it has been silent for {self._silence_limit_s:g} s"
        except (asyncio.IncompleteReadError, OSError):
            pass
        except FastServeError as error:
            reason = str(error)
        finally:
            if facts is not None:
                writer.transport.abort()
            else:
                writer.close()
            if facts is not None and self._writers.get(facts.rank) is writer:
                self._lose(facts.rank, reason)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> RankFacts | None:
        async with asyncio.timeout(HELLO_LIMIT_S):
            first = await _message(reader)
        try:
            if (asking := question_of(first)) is not None:
                asking.check_fits(self._own)
                await _say_last(writer, layers_frame(self._first_layers))
                return None
            facts = hello_of(first)
            if self._hears is None:
                return None
            self._hears.check(facts)
        except PeerMismatchError as error:
            _log.error("a rank is refused: %s", error)
            await _say_last(writer, refusal_frame(error.field, str(error).removeprefix(f"{error.field}: ")))
            return None
        if facts.rank in self._writers:
            self._lose(facts.rank, "it connected again")
        writer.write(welcome_frame(self._silence_limit_s))
        self._writers[facts.rank] = writer
        self._hears.joined(facts)
        return facts

    def _lose(self, rank: int, reason: str) -> None:
        self._writers.pop(rank).transport.abort()
        if self._hears is not None:
            self._hears.lost(rank, reason)

    async def _listen(self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the connection ends: always raises."""
        pings = asyncio.create_task(self._ping(writer))
        try:
            while True:
                async with asyncio.timeout(self._silence_limit_s):
                    message = from_rank_of(await _message(reader))
                if message is not None and self._hears is not None:
                    self._hears.said(rank, message)
        finally:
            pings.cancel()

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(PING_FRAME)
            await asyncio.sleep(self._silence_limit_s / PINGS_IN_LIMIT)


async def _say_last(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Sends a message and closes the connection."""
    writer.write(frame)
    with suppress(OSError):
        await writer.drain()
    writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(length_of(await reader.readexactly(LENGTH_BYTES)))
