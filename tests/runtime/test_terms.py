"""The newest term is obeyed, and no older one after it."""

import pytest

from services.domain.errors import SupersededError, UnreachableError
from services.runtime.terms import NO_TERM, NewestTerm, term_metadata, term_of


def test_a_term_comes_back_from_the_metadata_it_is_sent_in() -> None:
    assert term_of(term_metadata(7)) == 7


@pytest.mark.parametrize("metadata", [None, (), (("user-agent", "x"),), (("fastserve-term", "new"),)])
def test_who_says_no_term_has_none(metadata: object) -> None:
    assert term_of(metadata) == NO_TERM  # type: ignore[arg-type]


def test_older_terms_are_refused_after_a_newer_one_and_the_same_may_come_back() -> None:
    terms = NewestTerm()
    for term in (3, 3, 5, 5):
        terms.check_dialling(term)
    with pytest.raises(SupersededError, match="term 5 leads; term 4 is over"):
        terms.check_dialling(4)
    with pytest.raises(UnreachableError, match="of term 4, but one of term 5 leads"):
        terms.check_dialled(4, "the scheduler at x")


def test_a_scheduler_without_a_lease_beside_one_that_leads_is_told_what_to_change() -> None:
    terms = NewestTerm()
    terms.check_dialling(5)
    with pytest.raises(SupersededError, match="term 5 leads, and this one has no --lease: give it the same one"):
        terms.check_dialling(NO_TERM)


def test_without_a_lease_every_scheduler_is_heard() -> None:
    terms = NewestTerm()
    terms.check_dialling(NO_TERM)
    terms.check_dialling(NO_TERM)
