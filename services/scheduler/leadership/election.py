"""Who leads, decided over one record that all candidates read and write: a Lease of Kubernetes. Pure.

Theory of operation. The record names a holder, who renews it. Who finds it free, or not renewed for as long as it says
itself, writes its own name; the API server takes a write only over the version that the writer read, so of two that try
one wins. Whether a record was renewed is told by its having changed, and how long ago by the reader's own clock: the
times in it were written by clocks that may be wrong. client-go's election reads and writes the same record by the same
rules, so both can share a Lease.

The record counts its holders. The count is the term, which grows from leader to leader, and every stream of a scheduler
carries it: KV manager and workers obey the newest term that they have heard of. So it is no danger that a leader which
can't reach the API server goes on: it leads until it reads another's name, or until a peer tells it of a newer term.
"""

from dataclasses import dataclass, replace
from typing import Any

LEAST_DURATION_S = 1


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease's spec. `version` is the API server's, "" for a record that is not there. `renewed` is only compared."""

    holder: str
    duration_s: int
    transitions: int
    renewed: str = ""
    version: str = ""
    acquired: Any = None
    """When the holder took it, as the API server says it; None: with this write."""

    @property
    def term(self) -> int:
        """The holder's term, 1 for the first."""
        return self.transitions + 1


class Election:
    """One candidate. `identity` must be another one in each of its lives."""

    def __init__(self, identity: str, duration_s: int) -> None:
        assert identity
        self._identity = identity
        self._duration_s = max(LEAST_DURATION_S, duration_s)
        self._seen: tuple[str, str, str] | None = None
        self._changed_s = 0.0
        self._newest_term = 0
        self.term: int | None = None
        """The term in which this candidate leads; None: it does not."""

    def read(self, record: LeaseRecord | None, now_s: float) -> LeaseRecord | None:
        """Take what the record says now (None: there is none), at `now_s` on any clock that never goes back. Returns
        what to write over it, or None if another leads.
        """
        if record is None:
            # Somebody may have deleted it: terms go on from where they were.
            return LeaseRecord(self._identity, self._duration_s, (self.term or self._newest_term + 1) - 1)
        self._newest_term = max(self._newest_term, record.term)
        seen = (record.holder, record.renewed, record.version)
        if seen != self._seen:
            self._seen, self._changed_s = seen, now_s
        if record.holder == self._identity:
            # Also the first that is heard of a write whose answer was lost.
            self.term = record.term
            return replace(record, duration_s=self._duration_s)
        self.term = None
        if record.holder and now_s - self._changed_s <= record.duration_s:
            return None
        return replace(
            record,
            holder=self._identity,
            duration_s=self._duration_s,
            transitions=self._newest_term,
            acquired=None,
        )

    def lost_sight(self) -> None:
        """The record could not be read: it may have been renewed, or nobody could. The wait for its end begins anew, so
        that after an absence of the API server its holder has the time to renew it first.
        """
        self._seen = None

    def wrote(self, record: LeaseRecord) -> None:
        """The API server took the record that `read` returned."""
        self.term = record.term
        self._newest_term = max(self._newest_term, record.term)

    def given_back(self, record: LeaseRecord) -> LeaseRecord | None:
        """What to write over the record so that the next candidate need not wait; None if it is not this one's."""
        self.term = None
        if record.holder != self._identity:
            return None
        return replace(record, holder="", duration_s=LEAST_DURATION_S)
