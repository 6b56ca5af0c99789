"""Stands for the API server that a Candidate meets: one Lease with versions, a switch for its network, and a record of
who was published.
"""

from dataclasses import replace

from services.runtime.api_server_errors import ApiServerError, WriteConflictError
from services.scheduler.leadership.election import LeaseRecord


class FakeApiServerForCandidates:
    """Holds the Lease. `away` makes every call fail."""

    def __init__(self) -> None:
        self.lease: LeaseRecord | None = None
        self.published: list[str] = []
        self.away = False
        self.writes = 0


class FakeLeaseStore:
    """A candidate's LeaseStore over the server that it shares with others."""

    def __init__(self, server: FakeApiServerForCandidates, name: str) -> None:
        self._server = server
        self._name = name

    def _reach(self) -> FakeApiServerForCandidates:
        if self._server.away:
            raise ApiServerError("can't reach the API server: it is away")
        return self._server

    async def read(self) -> LeaseRecord | None:
        return self._reach().lease

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        server = self._reach()
        there = "" if server.lease is None else server.lease.version
        if record.version != there:
            raise WriteConflictError("the object was written by another")
        server.writes += 1
        server.lease = replace(record, version=str(server.writes), renewed=f"at write {server.writes}")
        return server.lease

    async def publish(self) -> None:
        self._reach().published.append(self._name)
