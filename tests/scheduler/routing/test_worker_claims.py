"""Who has a group, and which epochs are given out."""

import pytest

from services.domain.errors import GroupTakenError
from services.domain.ids import EPOCHS_OF_A_TERM, Epoch
from services.scheduler.routing.worker_claims import WorkerClaims

NONE = Epoch(0)


def claim(claims: WorkerClaims, worker_id: str, group: int = 0, last: int = 0, now_s: float = 0.0) -> int:
    return claims.claim(group, worker_id, Epoch(last), "cpu", now_s)


def test_rule_39_the_first_claim_holds_until_its_stream_is_gone() -> None:
    claims = WorkerClaims()
    first = claim(claims, "first", now_s=10.0)
    with pytest.raises(GroupTakenError, match=r"group 0 has a worker already, on cpu, for 32 s: give this one"):
        claim(claims, "second", now_s=42.0)
    claims.release(0, Epoch(first))
    assert claim(claims, "second") > first


def test_rule_39_groups_are_claimed_each_for_itself() -> None:
    claims = WorkerClaims()
    assert claim(claims, "a", group=0) != claim(claims, "b", group=1)


def test_rule_39_a_worker_takes_its_own_place_and_the_end_of_its_older_stream_changes_nothing() -> None:
    claims = WorkerClaims()
    older = claim(claims, "a")
    newer = claim(claims, "a", last=older)
    claims.release(0, Epoch(older))
    with pytest.raises(GroupTakenError):
        claim(claims, "b")
    claims.release(0, Epoch(newer))
    assert claim(claims, "b") > newer


def test_rule_40_an_epoch_is_greater_than_all_before_it_whoever_gave_them_out() -> None:
    claims = WorkerClaims()
    given = [claim(claims, "a"), claim(claims, "a", last=500), claim(claims, "b", group=1)]
    assert given == [1, 501, 502]
    assert not claims.outlived_by(Epoch(502))
    assert claims.outlived_by(Epoch(900))
    assert claim(claims, "a") == 901
    claims.begin_term(2)
    assert claim(claims, "a", last=EPOCHS_OF_A_TERM + 7) == 2 * EPOCHS_OF_A_TERM + 1
    # A scheduler never gives out smaller ones than it did, say because its term is told twice.
    claims.begin_term(2)
    assert claim(claims, "a") == 2 * EPOCHS_OF_A_TERM + 2
