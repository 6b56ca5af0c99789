"""PROTOCOL rules 19 and 20: epochs of the worker, and streams of the scheduler."""

import pytest

from services.domain.errors import ProtocolError
from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Applied,
    ArrivedJob,
    Assign,
    Finished,
    Jobs,
    OrderChange,
    Rank,
    Resident,
    WorkerPools,
)
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    Command,
    EndWorker,
    FromScheduler,
    FromWorker,
    KvWorkerLost,
    SchedulerConnected,
    SchedulerLost,
    ToScheduler,
    ToWorker,
)
from tests.kvmanager.machine.checked_kv_manager import EPOCH, CheckedKvManager, knobs

FIRST, SECOND, THIRD = Epoch(1), Epoch(2), Epoch(3)
JOB = JobId("a")


class Lives:
    """A KV manager with short names for events about epochs."""

    def __init__(self) -> None:
        self.machine = KvManager(knobs("reactive"))
        self.machine.handle([SchedulerConnected()], 0.0)

    def jobs(self, epoch: Epoch) -> list[Command]:
        """The scheduler names an epoch, and its one job."""
        order = (OrderChange(JOB, Rank(0, 0.0, 0)),)
        jobs = Jobs(epoch, (ArrivedJob(JOB, 2, 4, 3),), order, 2, (), None)
        return self._turn(FromScheduler(epoch, jobs))

    def pools(self, epoch: Epoch) -> list[Command]:
        """The worker joins."""
        return self._turn(FromWorker(epoch, WorkerPools(epoch, 1, 8, 4)))

    def lost(self, epoch: Epoch) -> list[Command]:
        """The worker's stream ends."""
        return self._turn(KvWorkerLost(epoch))

    def applied(self, epoch: Epoch, number: int = 1) -> list[Command]:
        """A command is acknowledged."""
        return self._turn(FromWorker(epoch, Applied(CommandNumber(number))))

    def scheduler_lost(self) -> list[Command]:
        """The scheduler's stream breaks, and opens again."""
        return self._turn(SchedulerLost(), SchedulerConnected())

    def _turn(self, *events: object) -> list[Command]:
        commands = self.machine.handle(events, 0.0)  # type: ignore[arg-type]
        self.machine.check()
        return commands


def assigned(epoch: Epoch) -> list[Command]:
    """The job gets its first blocks: a decision was made."""
    return [ToWorker(epoch, Assign(CommandNumber(1), JOB, (0, 1)))]  # type: ignore[arg-type]


def test_20_both_epochs_it_decides_once_both_sides_name_the_same_epoch_whoever_comes_first() -> None:
    lives = Lives()
    assert lives.jobs(FIRST) == []
    assert lives.pools(FIRST) == assigned(FIRST)
    lives = Lives()
    assert lives.pools(FIRST) == []
    assert lives.jobs(FIRST) == assigned(FIRST)
    assert lives.machine.ready


def test_20_w_crash_it_does_not_rebuild_before_the_scheduler_noticed() -> None:
    lives = Lives()
    lives.jobs(FIRST)
    lives.pools(FIRST)
    assert lives.pools(SECOND) == []
    assert not lives.machine.ready
    assert lives.jobs(SECOND) == assigned(SECOND)


def test_20_newest_epoch_two_crashes_old_jobs_that_come_second_do_not_void_new_pools() -> None:
    lives = Lives()
    lives.pools(FIRST)
    lives.pools(THIRD)
    assert lives.jobs(SECOND) == []
    assert lives.jobs(THIRD) == assigned(THIRD)


def test_20_newest_epoch_old_pools_that_come_second_do_not_void_new_jobs() -> None:
    lives = Lives()
    lives.jobs(THIRD)
    assert lives.pools(SECOND) == []
    assert lives.lost(SECOND) == []
    assert lives.pools(THIRD) == assigned(THIRD)


def test_19_epoch_checked_what_an_earlier_worker_said_is_dropped() -> None:
    lives = Lives()
    lives.jobs(FIRST)
    lives.pools(FIRST)
    lives.jobs(SECOND)
    lives.pools(SECOND)
    assert lives.applied(FIRST) == []
    assert lives.pools(FIRST) == []
    assert lives.applied(SECOND) == [ToScheduler(SECOND, Resident(JOB, 2, 0, 3))]


def test_19_epoch_checked_what_the_scheduler_says_about_an_earlier_epoch_is_dropped() -> None:
    lives = Lives()
    lives.jobs(FIRST)
    lives.pools(FIRST)
    lives.pools(SECOND)
    lives.jobs(SECOND)
    old = [FromScheduler(FIRST, Ack(JOB)), FromScheduler(FIRST, Finished(PlanNumber(0)))]
    assert lives.machine.handle(old, 0.0) == []


def test_a_lost_worker_comes_back_only_with_a_newer_epoch() -> None:
    lives = Lives()
    lives.jobs(FIRST)
    lives.pools(FIRST)
    lives.lost(FIRST)
    assert not lives.machine.ready
    assert lives.pools(FIRST) == []
    assert lives.pools(SECOND) == []
    assert lives.jobs(SECOND) == assigned(SECOND)


def test_19_a_new_stream_of_the_scheduler_voids_the_tables_that_the_old_one_spoke_of() -> None:
    lives = Lives()
    lives.jobs(FIRST)
    lives.pools(FIRST)
    assert lives.scheduler_lost() == [EndWorker(FIRST)]
    # It does not know yet that the worker begins a new epoch.
    assert lives.jobs(FIRST) == []
    assert lives.pools(SECOND) == []
    assert lives.jobs(SECOND) == assigned(SECOND)


def test_a_worker_that_was_given_nothing_yet_outlives_the_schedulers_stream() -> None:
    lives = Lives()
    lives.pools(FIRST)
    assert lives.scheduler_lost() == []
    assert lives.jobs(FIRST) == assigned(FIRST)


def test_jobs_of_an_epoch_are_said_once_on_a_stream() -> None:
    lives = Lives()
    lives.jobs(FIRST)
    with pytest.raises(ProtocolError, match="after Jobs for epoch"):
        lives.jobs(FIRST)


def test_a_worker_joins_an_epoch_once() -> None:
    lives = Lives()
    lives.pools(FIRST)
    with pytest.raises(ProtocolError, match="of epoch 1 joined twice"):
        lives.pools(FIRST)


def test_all_is_free_again_in_a_new_epoch_and_swapped_out_jobs_are_not_known_any_more() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 3)
    kv.arrive("a", 4, 4, key=-1.0)
    kv.swap_out("b")
    assert kv.machine.take_swaps() == ((JobId("b"),), ())
    kv.turn(KvWorkerLost(EPOCH))
    assert kv.machine.pool_usage() is None
    assert sum(kv.machine.status().values()) == 0
