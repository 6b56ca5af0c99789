"""Results that wait for the next ones, and those that do not."""

from collections.abc import Sequence

import pytest

from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.iteration import Plan, PlanWork, WorkerCounters, WorkerResult
from services.domain.protocol import IterationResult, SampledToken
from services.worker.held_results import CALL_LIMIT_S, HOLD_LIMIT_S, HeldResults

JOB = JobId("a/0")
SHORT_S = HOLD_LIMIT_S / 100


class Stepping:
    """A worker whose iterations take as long as the test says. `said` are the numbers of each message's plans."""

    def __init__(self) -> None:
        self.said: list[list[int]] = []
        self._now_s = 0.0
        self._number = 0
        self.results = HeldResults(self._say, lambda: self._now_s)

    def _say(self, results: Sequence[WorkerResult]) -> None:
        self.said.append([result.result.plan_number for result in results])

    def run_together(self, count: int, at_hand: int, duration_s: float = SHORT_S) -> None:
        """The next plans are computed in one call."""
        numbers = [self._number + ahead + 1 for ahead in range(count)]
        self._number += count
        work = (PlanWork(JOB, 5, 6, (), None, None),)
        plans = [Plan(Epoch(1), PlanNumber(number), work) for number in numbers]
        made = [IterationResult(Epoch(1), plan.plan_number, (), (), duration_s) for plan in plans]
        self.results.begin(plans[0])
        self._now_s += count * duration_s
        self.results.add(plans, [WorkerResult(each, {}, WorkerCounters()) for each in made], at_hand)

    def run(
        self,
        at_hand: int,
        *,
        tokens: int = 1,
        duration_s: float = SHORT_S,
        ends: bool = False,
        cut: bool = False,
        fails: bool = False,
    ) -> None:
        """The next plan computes so many tokens; `at_hand` plans are there when it has ended."""
        self._number += 1
        plan = Plan(Epoch(1), PlanNumber(self._number), (PlanWork(JOB, 5, 5 + tokens, (), None, None),))
        self.results.begin(plan)
        self._now_s += duration_s
        sampled = () if cut else (SampledToken(JOB, 7, ends),)
        made = IterationResult(plan.epoch, plan.plan_number, sampled, (JOB,) if cut else (), duration_s)
        self.results.add([plan], [WorkerResult(made, {}, WorkerCounters(), {JOB: "a fault"} if fails else {})], at_hand)


def test_half_of_the_plans_at_hand_are_left_when_results_go() -> None:
    stepping = Stepping()
    for at_hand in (7, 6, 5, 4):
        assert stepping.said == []
        stepping.run(at_hand)
    assert stepping.said == [[1, 2, 3, 4]]


def test_with_two_plans_in_flight_every_result_goes_at_once() -> None:
    stepping = Stepping()
    for _ in range(3):
        stepping.run(1)
    assert stepping.said == [[1], [2], [3]]


def test_the_last_plan_takes_along_what_waits() -> None:
    stepping = Stepping()
    stepping.run(5)
    stepping.run(0)
    assert stepping.said == [[1, 2]]


@pytest.mark.parametrize("awaited", ["ends", "cut", "fails"])
def test_what_frees_a_place_in_the_batch_goes_at_once_with_those_before_it(awaited: str) -> None:
    stepping = Stepping()
    stepping.run(7)
    stepping.run(6, **{awaited: True})
    assert stepping.said == [[1, 2]]


def test_a_first_token_goes_at_once_and_nothing_waits_for_a_prefill_to_end() -> None:
    stepping = Stepping()
    stepping.run(7)
    stepping.run(6, tokens=30, duration_s=1.0)
    assert stepping.said == [[1], [2]]


def test_no_result_waits_longer_than_the_limit() -> None:
    stepping = Stepping()
    for _ in range(4):
        stepping.run(7, duration_s=0.4 * HOLD_LIMIT_S)
    assert stepping.said == [[1, 2, 3]], "after the third the first has waited for 0.8 of it, the next would be late"


def test_what_waits_is_forgotten_with_its_epoch() -> None:
    stepping = Stepping()
    stepping.run(7)
    stepping.results.drop()
    stepping.run(0)
    assert stepping.said == [[2]]


def test_so_many_plans_may_be_run_together_that_half_are_left_when_their_results_go() -> None:
    stepping = Stepping()
    assert stepping.results.room(15) == 0, "how long one takes is not known yet"
    stepping.run(0)
    assert [stepping.results.room(at_hand) for at_hand in (0, 1, 2, 7, 15)] == [0, 0, 1, 3, 7]
    stepping.run(15)
    stepping.run(14)
    assert stepping.results.room(13) == 5, "two results wait already"


def test_no_more_plans_may_be_run_together_than_end_within_the_limit_of_a_call() -> None:
    stepping = Stepping()
    stepping.run(0, duration_s=0.24 * CALL_LIMIT_S)
    assert stepping.results.room(15) == 3
    stepping.run(0, duration_s=1.2 * CALL_LIMIT_S)
    assert stepping.results.room(15) == 0


def test_nor_than_end_before_the_results_that_wait_are_late() -> None:
    stepping = Stepping()
    for _ in range(80):
        stepping.run(200)
    assert stepping.said == []
    assert stepping.results.room(199) == 19, "the first result has waited for 0.79 of the limit"


def test_results_of_plans_that_were_run_together_go_together() -> None:
    stepping = Stepping()
    stepping.run_together(3, at_hand=5)
    assert stepping.said == []
    stepping.run_together(2, at_hand=3)
    assert stepping.said == [[1, 2, 3, 4, 5]]
    stepping.run_together(3, at_hand=12, duration_s=0.4 * HOLD_LIMIT_S)
    assert stepping.said == [[1, 2, 3, 4, 5], [6, 7, 8]], "the next one would be late"
