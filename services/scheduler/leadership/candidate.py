"""A scheduler's part in the election: reads the Lease every while, writes it when that is its turn, and tells whether
it leads. What talks to the API server is behind LeaseStore.
"""

import asyncio
import logging
import random
from typing import Protocol

from services.domain.errors import FastServeError, SupersededError
from services.runtime.api_server_errors import ApiServerError, WriteConflictError
from services.scheduler.leadership.election import Election, LeaseRecord

_log = logging.getLogger(__name__)

CALL_LIMIT_S = 2.0
JITTER = 0.2


class LeaseStore(Protocol):
    """One Lease. All methods raise ApiServerError, and the writing ones WriteConflictError."""

    async def read(self) -> LeaseRecord | None:
        """The Lease; None if there is none."""

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        """Write it over the version that was read, or create it; as it is afterwards."""

    async def publish(self) -> None:
        """Make this process the one that the Service's name leads to."""


class Candidate:
    """`run` takes part until it is cancelled. Must be created on the event loop."""

    def __init__(self, store: LeaseStore, election: Election, retry_s: float) -> None:
        self._store = store
        self._election = election
        self._retry_s = retry_s
        self._clock = asyncio.get_running_loop().time
        self._won = asyncio.Event()
        self._trouble = ""
        self._published = False

    async def won(self) -> int:
        """Waits until this candidate leads; its term."""
        await self._won.wait()
        assert self._election.term is not None
        return self._election.term

    async def run(self) -> None:
        """Raises SupersededError once another leads after this one has."""
        while True:
            await self._try()
            if self._election.term is not None:
                self._won.set()
            elif self._won.is_set():
                raise SupersededError("another scheduler holds the Lease now: this one must not command any more")
            await asyncio.sleep(self._retry_s * random.uniform(1.0 - JITTER, 1.0))

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                wanted = self._election.read(await self._store.read(), self._clock())
                if wanted is not None:
                    self._election.wrote(await self._store.write(wanted))
                if self._election.term is not None and not self._published:
                    await self._store.publish()
                    self._published = True
                    _log.info("leads in term %d", self._election.term)
            self._note("")
        except WriteConflictError:
            return
        except ApiServerError as error:
            self._election.lost_sight()
            self._note(str(error))
        except TimeoutError:
            self._election.lost_sight()
            self._note(f"the API server does not answer within {CALL_LIMIT_S:g} s")

    def _note(self, trouble: str) -> None:
        """Logs what is wrong once, and that it is over."""
        if trouble != self._trouble:
            if trouble:
                _log.error("%s%s", trouble, "; leading on" if self._won.is_set() else "")
            else:
                _log.info("the API server answers again")
        self._trouble = trouble

    async def give_back(self) -> None:
        """Free the Lease if it is this candidate's, so that the next one leads at once. Gives up when that fails."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                record = await self._store.read()
                freed = None if record is None else self._election.given_back(record)
                if freed is not None:
                    await self._store.write(freed)
                    _log.info("gave the Lease back")
        except (FastServeError, TimeoutError) as error:
            _log.warning("can't give the Lease back: %s", error or "no answer")
