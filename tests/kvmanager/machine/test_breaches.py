"""A breach of the protocol raises an error with the job's history: it is a bug of the peer, and continuing would
corrupt KV.
"""

import pytest

from services.domain.errors import ProtocolError
from tests.kvmanager.machine.checked_kv_manager import CheckedKvManager


def test_ack_in_flight_a_plan_that_names_an_offloaded_job_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 3)
    kv.arrive("a", 4, 4, key=-1.0)
    kv.ack("b")
    with pytest.raises(
        ProtocolError, match=r"job b: plan 2 names this job, but it is not resident .*asked, offloading"
    ):
        kv.plan(("b", 2, 3))


def test_a_plan_beyond_the_announced_capacity_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive")
    kv.settle(kv.arrive("a", 2, 4))
    with pytest.raises(ProtocolError, match="beyond the capacity"):
        kv.plan(("a", 0, 3))


def test_consent_while_a_plan_names_the_job_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 4, key=5.0)
    kv.plan(("b", 2, 3))
    kv.arrive("a", 4, 4, key=-1.0)
    with pytest.raises(ProtocolError, match="unfinished plans name it"):
        kv.ack("b")


def test_speculation_a_release_while_a_plan_names_the_job_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 4)
    kv.plan(("b", 2, 3))
    with pytest.raises(ProtocolError, match="unfinished plans name it"):
        kv.release("b")


def test_consent_that_nobody_asked_for_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive")
    kv.bring("b", 2, 4)
    with pytest.raises(ProtocolError, match="never requested"):
        kv.ack("b")
    with pytest.raises(ProtocolError, match="never requested"):
        kv.refuse("b")


def test_an_acknowledgement_of_a_command_that_was_never_given_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive")
    with pytest.raises(ProtocolError, match="never issued"):
        kv.applied(1)


def test_an_unknown_job_and_one_that_arrives_twice_are_refused_loudly() -> None:
    kv = CheckedKvManager("reactive")
    kv.arrive("a", 1, 1)
    with pytest.raises(ProtocolError, match="arrived twice"):
        kv.arrive("a", 1, 1)
    with pytest.raises(ProtocolError, match="unknown job"):
        kv.ack("nobody")


def test_the_release_of_a_job_that_ended_before_jobs_named_any_is_nothing() -> None:
    kv = CheckedKvManager("reactive")
    assert kv.release("nobody") == []
