"""A plan that the worker gave back leaves no trace: nothing of it was computed, and nobody waits for it."""

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import PlanNumber
from services.domain.protocol import Offload, Recalled
from tests.kvmanager.machine.checked_kv_manager import CheckedKvManager


def planned_ahead() -> CheckedKvManager:
    """B has run its prefill of two tokens, and a plan of its third one is under way."""
    kv = CheckedKvManager("reactive", device=4)
    kv.settle(kv.arrive("b", 2, 4))
    kv.settle(kv.plan(("b", 0, 2)))
    kv.settle(kv.finish())
    kv.settle(kv.plan(("b", 2, 3)))
    return kv


def copied_tokens(kv: CheckedKvManager) -> int:
    """How much of b is copied to the host when a job that needs all blocks comes before it."""
    kv.arrive("a", 4, 4, key=-1.0)
    offload = kv.ack("b")[0]
    assert isinstance(offload, Offload)
    return offload.valid_tokens


def test_what_it_would_have_computed_is_not_copied() -> None:
    kv = planned_ahead()
    kv.say(Recalled(PlanNumber(kv._plans)))
    assert copied_tokens(kv) == 2


def test_its_positions_may_be_planned_again() -> None:
    kv = planned_ahead()
    kv.say(Recalled(PlanNumber(kv._plans)))
    kv.plan(("b", 2, 3))
    kv.finish()
    assert copied_tokens(kv) == 3


def test_only_the_newest_plan_may_be_recalled() -> None:
    kv = planned_ahead()
    with pytest.raises(ProtocolError, match="not the last one under way"):
        kv.say(Recalled(PlanNumber(kv._plans - 1)))
