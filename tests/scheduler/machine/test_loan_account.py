"""How much is lent so that jobs stay within the limits: a share of the time, or nearly all of it where that is free."""

from math import inf

import pytest

from services.scheduler.machine.loan_account import (
    CREDIT_S,
    FEW_JOBS,
    FEW_PREFILLS,
    FREE_SPREAD,
    GREAT_SPREAD,
    MANY_PREFILLS,
    SAFE_SPREAD,
    LoanAccount,
)
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.scheduling_policy import UNKNOWN_WORK, WorkShape
from services.scheduler.scheduler_config import SchedulerConfig
from tests.builders.cost_profiles import proportional_cost

STEP_S = 0.02
LONG = 400
"""Steps after which their average time is known."""


def account(steps: int = LONG, **knobs: object) -> LoanAccount:
    """One of a batch of 8 with iterations of 20 ms, after so many of them. In 0.095 s, which is the limit less a
    twentieth, 4.75 jobs can take turns at a row.
    """
    config = SchedulerConfig(max_batch=8, **knobs)  # type: ignore[arg-type]
    made = LoanAccount(config, BatchLimit(config))
    made.calibrate(proportional_cost(0.001, STEP_S))
    for step in range(steps + 1):
        made.pass_time(STEP_S * step, 1, 10_000, UNKNOWN_WORK)
    return made


def tokens_lent(made: LoanAccount) -> int:
    """How many tokens can be lent before the account is empty."""
    count = 0
    while made.has_credit:
        made.pay_tokens(1)
        count += 1
    return count


def test_beyond_what_can_be_kept_a_share_of_the_time_is_lent() -> None:
    assert tokens_lent(account(100, first_token_share=0.0)) == 0
    # A token is an eighth of 20 ms. The average of the steps begins at 0, so a token seems cheaper at first.
    assert tokens_lent(account(LONG, first_token_share=0.05)) == pytest.approx(0.05 * LONG * 8, rel=0.01)
    assert tokens_lent(account(LONG, first_token_share=0.1)) == pytest.approx(0.1 * LONG * 8, rel=0.01)


def test_iterations_whose_results_come_together_are_as_long_as_those_that_come_one_by_one() -> None:
    made = account(0, first_token_share=0.05)
    for step in range(1, LONG // 4 + 1):
        made.pass_time(4 * STEP_S * step, 4, 10_000, UNKNOWN_WORK)
    assert made.gain_s == pytest.approx(account(LONG).gain_s, rel=0.001)
    assert tokens_lent(made) == pytest.approx(0.05 * LONG * 8, rel=0.01)


def test_no_more_than_two_seconds_are_saved_up() -> None:
    assert tokens_lent(account(4 * LONG, first_token_share=1.0)) == pytest.approx(CREDIT_S / STEP_S * 8, rel=0.01)


def earns(made: LoanAccount, living_jobs: int, spread: float, prefill_share: float) -> bool:
    """Whether an account whose share is 0 gets anything while there are so many jobs. What it got with the first steps,
    whose average time began at 0, is spent before.
    """
    while made.has_credit:
        made.pay_tokens(1)
    for step in range(1, 100):
        made.pass_time(STEP_S * (LONG + step), 1, living_jobs, WorkShape(spread, prefill_share))
    return made.has_credit


HALF_WAY = (FEW_PREFILLS + MANY_PREFILLS) / 2 - 1e-9  # on the near side, whatever is rounded


@pytest.mark.parametrize(
    ("living_jobs", "spread", "prefill_share", "free"),
    [
        (12, 0.0, FEW_PREFILLS, True),  # FEW_JOBS times the batch
        (13, 0.0, FEW_PREFILLS, False),
        (6, 0.0, HALF_WAY, True),  # half as many where prefills are half of the way to being nearly all of the work
        (7, 0.0, HALF_WAY, False),
        (1, 0.0, MANY_PREFILLS, False),
        (13, FREE_SPREAD, 0.0, False),
        (39, SAFE_SPREAD, 0.0, True),  # 0.1 s are five iterations: so many can take turns at each of eight rows
        (41, SAFE_SPREAD, 0.0, False),
        (19, SAFE_SPREAD, HALF_WAY, True),
        (21, SAFE_SPREAD, HALF_WAY, False),
        (1, SAFE_SPREAD, MANY_PREFILLS, False),
        (39, GREAT_SPREAD - 0.1, 0.0, True),
        (1, GREAT_SPREAD, 0.0, False),
        (25, 1.125, 0.0, True),  # half of the way: the mean of 12 and 40
        (27, 1.125, 0.0, False),
    ],
)
def test_all_time_is_lent_while_that_is_free(living_jobs: int, spread: float, prefill_share: float, free: bool) -> None:
    assert int(FEW_JOBS * 8) == 12
    assert earns(account(first_token_share=0.0), living_jobs, spread, prefill_share) is free


def test_slow_iterations_keep_no_later_tokens_and_nothing_is_free() -> None:
    slow = account(first_token_share=0.0, per_token_limit_s=0.021)
    assert not slow.keeps_later_tokens
    assert not earns(slow, 1, 2.0, 0.0)
    quick = account(first_token_share=0.0, per_token_limit_s=0.022)
    assert quick.keeps_later_tokens
    assert earns(quick, 1, 2.0, 0.0)
    assert not account(per_token_limit_s=None).keeps_later_tokens


def test_where_a_few_jobs_are_most_of_the_work_no_later_tokens_are_lent() -> None:
    made = account()
    assert made.keeps_later_tokens
    made.pass_time(STEP_S * (LONG + 1), 1, 10, WorkShape(GREAT_SPREAD, 0.0))
    assert not made.keeps_later_tokens


def test_as_many_jobs_may_have_started_as_loans_can_keep_within_the_limits() -> None:
    made = account()
    # Two rows by rank, and 4.75 jobs at each of the six that are lent.
    assert made.has_room(30)
    assert not made.has_room(31)


def test_without_a_limit_on_later_tokens_as_many_as_loans_can_keep_from_falling_silent() -> None:
    made = account(per_token_limit_s=None)
    # 1.5 s are 75 iterations, two jobs each; a third of that is counted on.
    assert made.has_room(8 + 52)
    assert not made.has_room(8 + 53)
    assert account(per_token_limit_s=None, silence_limit_s=None).has_room(1_000_000)


def test_silent_jobs_get_more_rows_where_they_would_wait_too_long_for_a_loan() -> None:
    made = account()
    # A quarter of eight rows serves 25 jobs in a quarter of a second, a sixth of the limit.
    assert [made.most_silent(near, 0) for near in (0, 25, 26, 37, 38, 1000)] == [2, 2, 3, 3, 4, 4]
    # It serves four that are lent 16 iterations in 0.67 s, a sixth of the time after which they may be lent again.
    assert [made.most_silent(0, far) for far in (4, 5, 6, 7, 1000)] == [2, 3, 3, 4, 4]
    assert made.most_silent(13, 3) == 3


def test_a_silent_job_is_lent_an_iteration_as_much_before_the_limit_as_its_token_takes() -> None:
    assert account().lent_after_s == pytest.approx(1.5 - 3 * STEP_S, abs=1e-6)
    assert account(silence_limit_s=0.1).lent_after_s == 0.05, "never after less than half of the limit"
    assert account(silence_limit_s=None).lent_after_s == inf


def test_where_some_iterations_are_long_its_token_waits_for_these() -> None:
    """Every fifth takes 0.2 s, with a prefill. These are ten of 14 parts of the time, so whoever falls silent waits for
    0.15 s an iteration on average, while iterations take 0.056 s on average.
    """
    made = account(0)
    now_s = 0.0
    for step in range(LONG):
        now_s += 0.2 if step % 5 == 0 else STEP_S
        made.pass_time(now_s, 1, 10_000, UNKNOWN_WORK)
    assert made.lent_after_s == pytest.approx(1.5 - 3 * 0.15, abs=0.03)


def test_an_iteration_that_ends_after_nobody_was_there_tells_nothing_of_how_long_they_take() -> None:
    made = account()
    took_s = made.gain_s
    made.pass_time(STEP_S * (LONG + 1), 1, 0, UNKNOWN_WORK)
    made.pass_time(STEP_S * (LONG + 1) + 60.0, 1, 1, UNKNOWN_WORK)
    assert made.gain_s == pytest.approx(took_s, abs=1e-6)
    made.pass_time(STEP_S * (LONG + 1) + 61.0, 1, 1, UNKNOWN_WORK)
    assert made.gain_s < took_s - 0.04
