"""Properties of the whole machine: bounds, determinism, and random peers that keep to the protocol."""

import pickle

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import Epoch, JobId
from services.domain.protocol import ArrivedJob, Jobs, OrderChange, Rank, WorkerPools
from services.domain.ranked import Ranked
from services.kvmanager.machine import decisions as decide
from services.kvmanager.machine.job_order import LEVEL_LIMIT
from services.kvmanager.machine.kv_job import LEGAL_MOVES, KvJob, KvState
from services.kvmanager.machine.kv_manager_events import FromScheduler, FromWorker
from services.kvmanager.machine.ledger import Ledger
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES, KvConfig
from tests.kvmanager.machine.checked_kv_manager import EPOCH, CheckedKvManager, knobs, resident

MAX_BATCH = 4


@pytest.mark.parametrize("policy", KV_POLICY_NAMES)
def test_a_decision_looks_at_two_batches_of_jobs_however_many_are_queued(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked: list[KvJob] = []
    asked: list[KvJob] = []
    cut_out, blocks_wanted = Ranked[KvJob].slice, decide.blocks_wanted

    def slice_(ranked: Ranked[KvJob], start: int, stop: int) -> list[KvJob]:
        jobs = cut_out(ranked, start, stop)
        walked.extend(jobs)
        return jobs

    def counted(ledger: Ledger, job: KvJob, knobs: KvConfig) -> int:
        asked.append(job)
        return blocks_wanted(ledger, job, knobs)

    kv = CheckedKvManager(policy, device=64, max_batch=MAX_BATCH)
    for number in range(300):
        kv.settle(kv.arrive(f"job-{number}", 2, 8))
    monkeypatch.setattr(decide, "blocks_wanted", counted)
    monkeypatch.setattr(Ranked, "slice", slice_)
    kv.settle(kv.run(("job-0", 0, 2), ("job-1", 0, 2)))
    walked.clear()
    asked.clear()
    kv.plan(("job-0", 2, 3))
    assert 0 < len(walked) <= 2 * MAX_BATCH
    assert len(asked) <= 2 * MAX_BATCH + decide.PROMOTED_SCAN


def test_the_same_events_give_the_same_commands() -> None:
    heard: list[list[object]] = []
    for _ in range(2):
        kv = CheckedKvManager(knobs("proactive", idle_slots=1), device=8, max_batch=2)
        said: list[object] = []
        for name in ("c", "a", "b"):
            said += kv.settle(kv.arrive(name, 2, 4))
        said += kv.settle(kv.run(("c", 0, 2), ("a", 0, 2)))
        heard.append(said)
    assert heard[0] == heard[1]


def test_a_pickled_machine_goes_on_where_the_other_was() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 2, 4)
    copy = pickle.loads(pickle.dumps(kv.machine))
    assert copy.state_key(0.0) == kv.machine.state_key(0.0)
    kv.arrive("b", 1, 1)
    assert copy.state_key(0.0) != kv.machine.state_key(0.0)


def test_the_state_key_does_not_grow_with_numbers_and_time() -> None:
    keys = []
    for rounds in (1, 3):
        kv = CheckedKvManager("reactive", device=4, starvation_limit_s=10.0)
        kv.arrive("a", 1, 4, key=0.0)
        kv.settle(kv.applied(1))
        for _ in range(rounds):
            kv.now_s += 1.0
            kv.settle(kv.run(("a", 0, 1)))
        keys.append(kv.machine.state_key(kv.now_s))
    assert keys[0] == keys[1]


def test_an_illegal_move_tells_the_jobs_story() -> None:
    job = KvJob(JobId("a"), 2, 4, 0, 0.0)
    job.move(KvState.ASSIGNING)
    with pytest.raises(AssertionError, match=r"illegal move assigning -> host \(history: arrived, assigning"):
        job.move(KvState.HOST)


def test_every_state_has_its_legal_moves() -> None:
    assert set(LEGAL_MOVES) == set(KvState)
    reachable = {state for moves in LEGAL_MOVES.values() for state in moves}
    assert reachable == set(KvState)


def test_a_job_without_a_rank_is_served_nothing() -> None:
    kv = CheckedKvManager("reactive")
    arrive, order = kv.arrival("a", 2, 4)
    assert kv.say(arrive) == []
    assert kv.settle(kv.say(order)) == [resident("a", 2)]


def test_a_job_larger_than_the_pool_holds_nobody_up() -> None:
    kv = CheckedKvManager("defer", device=4)
    assert kv.arrive("huge", 5, 6) == []
    assert kv.settle(kv.arrive("b", 2, 2)) == [resident("b", 2)]


def test_levels_are_bounded() -> None:
    kv = CheckedKvManager("reactive")
    with pytest.raises(ProtocolError, match=r"level .* must be less than"):
        kv.arrive("a", 2, 4, level=LEVEL_LIMIT)


def test_a_cut_prefill_is_not_counted_as_kv() -> None:
    kv = CheckedKvManager("reactive", device=4, block_size=2)
    kv.settle(kv.arrive("a", 4, 6))
    kv.run(("a", 0, 4))
    # Its result said that the prefill was cut; the scheduler plans it again from the start.
    kv.plan(("a", 0, 4))
    job = kv.machine._ledger.jobs[JobId("a")]  # type: ignore[union-attr]
    assert job.finished == 0


def test_status_counts_jobs_by_state() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 3)
    kv.arrive("a", 4, 4, key=-1.0)
    kv.swap_out("b")
    status = kv.machine.status()
    assert (status["host"], status["device"]) == (1, 1)
    assert sum(status.values()) == 2


def test_a_batch_of_no_job_is_refused_loudly() -> None:
    kv = CheckedKvManager("reactive")
    jobs = Jobs(Epoch(EPOCH + 1), (), (), 0, (), None)
    with pytest.raises(ProtocolError, match="max_batch in Jobs is 0"):
        kv.turn(FromScheduler(jobs.epoch, jobs))


def test_jobs_named_at_the_opening_are_served_by_their_order() -> None:
    kv = CheckedKvManager("reactive", device=2)
    epoch = Epoch(EPOCH + 1)
    names = ("a", "b")
    jobs = tuple(ArrivedJob(JobId(name), 2, 2, 0) for name in names)
    order = tuple(OrderChange(JobId(name), Rank(0, -float(at), at)) for at, name in enumerate(names))
    kv.turn(FromScheduler(epoch, Jobs(epoch, jobs, order, 2, (), None)))
    [assign] = kv.turn(FromWorker(epoch, WorkerPools(epoch, 1, 2, 2)))
    assert assign.job_id == "b"
