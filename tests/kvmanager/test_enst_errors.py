"""How good ENST was, worked by hand: B = 1 and quanta of 1, 2 and 4 s, so a job of level 1 is estimated to wait for 1 s
per job of level 0, and one of level 2 for 3 s per job of level 0 and 2 s per job of level 1.
"""

from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.protocol import Finished, Jobs, PlanEntry, Planned, Recalled
from services.kvmanager.enst_errors import EnstErrors
from services.kvmanager.machine.kv_manager_events import Command, Event, FromScheduler
from tests.kvmanager.machine.checked_kv_manager import CheckedKvManager

QUANTA_S = (1.0, 2.0, 4.0)
GROUP = 3


class JudgedKvManager(CheckedKvManager):
    """Its estimates are judged: `judged` has the pairs of estimate and wait."""

    def __init__(self, quanta_s: tuple[float, ...] = QUANTA_S, starvation_limit_s: float | None = None) -> None:
        self.judged: list[tuple[float, float]] = []
        self._errors = EnstErrors(GROUP, self._hear)
        super().__init__(device=8, block_size=8, max_batch=1, quanta_s=quanta_s, starvation_limit_s=starvation_limit_s)

    def _hear(self, group: int, enst_s: float, waited_s: float) -> None:
        assert group == GROUP
        self.judged.append((enst_s, waited_s))

    def commands(self, *events: Event) -> list[Command]:
        commands = super().commands(*events)
        self._errors.after_turn(self.machine, events, self.now_s)
        return commands


def two_levels(starvation_limit_s: float | None = None) -> JudgedKvManager:
    """`a` on level 0 and `b` on level 1 have run their prefills; at time 0 nobody is in a plan."""
    kv = JudgedKvManager(starvation_limit_s=starvation_limit_s)
    kv.bring("a", 2, 8)
    kv.bring("b", 2, 8, level=1)
    kv.plan(("b", 2, 3))
    kv.judged.clear()
    kv.finish()
    return kv


def test_a_job_that_was_left_out_is_judged_when_a_plan_names_it_again() -> None:
    kv = two_levels()
    kv.now_s = 3.0
    kv.plan(("b", 3, 4))
    assert kv.judged == [(1.0, 3.0)]


def test_it_is_judged_once() -> None:
    kv = two_levels()
    kv.now_s = 0.25
    kv.plan(("b", 3, 4))
    kv.plan(("b", 4, 5))
    assert kv.judged == [(1.0, 0.25)]


def test_a_plan_that_was_recalled_leaves_its_jobs_out() -> None:
    kv = two_levels()
    kv.plan(("b", 3, 4))
    kv.judged.clear()
    kv.say(Recalled(PlanNumber(kv._plans)))
    kv.now_s = 3.0
    kv.plan(("b", 3, 4))
    assert kv.judged == [(1.0, 3.0)]


def test_a_promotion_that_comes_sooner_was_the_estimate() -> None:
    kv = two_levels(starvation_limit_s=0.5)
    kv.now_s = 0.75
    kv.plan(("b", 3, 4))
    assert kv.judged == [(0.5, 0.75)]


def test_a_job_that_stays_in_the_batch_does_not_wait() -> None:
    kv = two_levels()
    kv.plan(("a", 2, 3))
    kv.judged.clear()
    for token in (3, 4, 5):
        # The next plan is made in the turn of the last result, or before.
        entry = PlanEntry(JobId("a"), token, token + 1)
        kv.say(Finished(PlanNumber(token + 1)), Planned(PlanNumber(token + 2), (entry,)))
        kv.now_s += 1.0
    assert kv.judged == []


def test_a_job_that_ends_first_is_not_judged_and_neither_is_a_new_one_of_its_name() -> None:
    kv = two_levels()
    kv.release("b")
    kv.settle(kv.arrive("b", 2, 8, level=1))
    kv.now_s = 5.0
    kv.plan(("b", 0, 2))
    assert kv.judged == []


def test_a_new_epoch_forgets_what_was_estimated() -> None:
    kv = two_levels()
    errors = kv._errors
    jobs = Jobs(Epoch(8), (), (), 1, QUANTA_S, None)
    errors.after_turn(kv.machine, (FromScheduler(Epoch(8), jobs),), 1.0)
    planned = Planned(PlanNumber(1), (PlanEntry(JobId("b"), 3, 4),))
    errors.after_turn(kv.machine, (FromScheduler(Epoch(8), planned),), 2.0)
    assert kv.judged == []


def test_without_quanta_there_is_no_estimate() -> None:
    kv = JudgedKvManager(quanta_s=())
    kv.bring("a", 2, 8)
    kv.now_s = 1.0
    kv.plan(("a", 2, 3))
    assert kv.judged == []
