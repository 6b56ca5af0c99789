"""The term of a scheduler, which all its streams carry as gRPC metadata, and the rule that the newest is obeyed.

Schedulers that share a Lease lead in terms of growing numbers (services.scheduler.leadership). One that was replaced
may not know it yet. So whoever meets a scheduler remembers the newest term that it has heard of, and refuses any older
one. A scheduler without a Lease has term 0: then the newest stream counts, as ever.
"""

from collections.abc import Iterable
from typing import Any

from services.domain.errors import NotReadyError, SupersededError, UnreachableError
from services.domain.ids import EPOCHS_OF_A_TERM, Epoch

TERM_KEY = "fastserve-term"
NO_TERM = 0


def term_metadata(term: int) -> tuple[tuple[str, str], ...]:
    """What a scheduler sends: with its call to the KV manager, and with its first answer to gateways and workers."""
    return ((TERM_KEY, str(term)),)


def term_of(metadata: Iterable[Any] | None) -> int:
    """The peer's term; NO_TERM if it sent none, or no whole number."""
    for key, value in metadata or ():
        if key == TERM_KEY and str(value).isdecimal():
            return int(value)
    return NO_TERM


class NewestTerm:
    """The newest term that this process has heard of."""

    def __init__(self) -> None:
        self._newest = NO_TERM

    def hear(self, term: int) -> bool:
        """Whether the term is not older than any before."""
        if term < self._newest:
            return False
        self._newest = term
        return True

    def check_dialling(self, term: int) -> None:
        """For the side that is dialled. Raises SupersededError for a scheduler that has been replaced."""
        if not self.hear(term):
            leads = f"a scheduler of term {self._newest} leads"
            if term == NO_TERM:
                raise SupersededError(f"{leads}, and this one has no --lease: give it the same one, or delete it")
            raise SupersededError(f"{leads}; term {term} is over")

    def check_epoch(self, epoch: Epoch) -> None:
        """For the side that is dialled by a worker. Raises NotReadyError for an epoch that a scheduler gave out which
        has been replaced: the worker is to ask the leader for another one.
        """
        term = epoch // EPOCHS_OF_A_TERM
        if term < self._newest:
            raise NotReadyError(f"epoch {epoch} is of term {term}, but a scheduler of term {self._newest} leads")

    def check_dialled(self, term: int, peer: str) -> None:
        """For the side that dials. Raises UnreachableError: dial again, and reach the leader."""
        if not self.hear(term):
            raise UnreachableError(f"{peer} is of term {term}, but one of term {self._newest} leads")
