"""A prefill that was cut leaves no KV: nothing of it is copied, and nothing of it counts as valid."""

from services.domain.ids import JobId, PlanNumber
from services.domain.protocol import Finished, KvToWorker, Offload, ReleaseBlocks, Resident
from services.kvmanager.machine.kv_job import KvState
from tests.kvmanager.machine.checked_kv_manager import CheckedKvManager, Message


def ran(kv: CheckedKvManager, entry: tuple[str, int, int], *, is_cut: bool) -> list[Message]:
    """One plan with one entry, and its result."""
    kv.plan(entry)
    return kv.say(Finished(PlanNumber(kv._plans), (JobId(entry[0]),) if is_cut else ()))


def taken(kv: CheckedKvManager) -> KvToWorker:
    """A job that wants all four blocks arrives before b, whose blocks are asked for and given."""
    kv.arrive("a", 4, 4, key=-1.0)
    first = kv.ack("b")[0]
    assert not isinstance(first, Resident)
    return first  # type: ignore[return-value]


def prefilled(*, is_cut: bool) -> CheckedKvManager:
    kv = CheckedKvManager("reactive", device=4)
    kv.settle(kv.arrive("b", 2, 3))
    ran(kv, ("b", 0, 2), is_cut=is_cut)
    return kv


def test_a_whole_prefill_is_offloaded() -> None:
    assert isinstance(taken(prefilled(is_cut=False)), Offload)


def test_a_cut_prefill_is_dropped_because_the_worker_has_nothing_to_copy() -> None:
    kv = prefilled(is_cut=True)
    assert isinstance(taken(kv), ReleaseBlocks)
    assert kv.state("b") is KvState.WAITING


def test_of_a_cut_chunk_the_chunks_before_it_are_kept() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.settle(kv.arrive("b", 2, 3))
    ran(kv, ("b", 0, 1), is_cut=False)
    ran(kv, ("b", 1, 2), is_cut=True)
    offload = taken(kv)
    assert isinstance(offload, Offload)
    assert (offload.valid_tokens, len(offload.moves)) == (1, 1)


def test_a_cut_prefill_may_be_planned_again_from_its_start() -> None:
    kv = prefilled(is_cut=True)
    assert ran(kv, ("b", 0, 2), is_cut=False) == []
    assert isinstance(taken(kv), Offload)
