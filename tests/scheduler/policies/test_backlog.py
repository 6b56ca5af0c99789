"""What a group's jobs still cost, against sums made by hand, and how many groups that asks for."""

import pytest

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.generation import EndReason
from services.domain.group_backlog import IDLE, GroupBacklog
from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.policies.backlog import Backlog
from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.group_demand import DemandLimits, GroupDemand
from services.scheduler.policies.length_distribution import LengthDistribution
from services.scheduler.scheduler_config import SchedulerConfig

TOKEN_S = 0.01
"""An iteration takes as long whatever its batch, and a prefill a millisecond a token."""
PROFILE = CostProfile(
    prefill=(PrefillCost(1, 0.001), PrefillCost(1001, 1.001)),
    decode=tuple(DecodeCost(batch, context, TOKEN_S) for batch in (1, 8) for context in (1, 1000)),
)
BY_JOBS = CostProfile(
    prefill=PROFILE.prefill,
    decode=tuple(DecodeCost(batch, context, batch * TOKEN_S) for batch in (1, 8) for context in (1, 1000)),
)
"""Here an iteration takes as long as all its jobs one by one."""
MAX_BATCH = 4
BATCH = BatchLimit(SchedulerConfig(max_batch=MAX_BATCH))
LARGE_POOL_TOKENS = 1_000_000


def job(number: int, prompt_tokens: int = 100, max_tokens: int = 1000) -> Job:
    nowhere = Rank(0, 0.0, number)
    return Job(
        JobId(str(number)), number, number, prompt_tokens, max_tokens, 0.0, None, nowhere, nowhere, prompt_tokens,
        prompt_tokens,
    )  # fmt: skip


def make(
    lengths: LengthDistribution | None = None, pool_tokens: int = LARGE_POOL_TOKENS, profile: CostProfile = PROFILE
) -> Backlog:
    backlog = Backlog(BATCH, lengths)
    backlog.calibrate(profile, pool_tokens, 1, ())
    return backlog


def runs(backlog: Backlog, one: Job, tokens: int) -> None:
    """The job makes so many tokens more, as the machine counts them."""
    for _ in range(tokens):
        one.known_tokens += 1
        if one.known_tokens >= one.next_length_tokens:
            backlog.advance(one)


def predicted(backlog: Backlog) -> GroupBacklog:
    found = backlog.predicted()
    assert found is not None
    return found


def taught(backlog: Backlog, length: int, jobs: int) -> None:
    """So many jobs come, make `length` tokens and end."""
    for number in range(jobs):
        one = job(1000 + number)
        backlog.enter(one)
        runs(backlog, one, length)
        backlog.leave(one, EndReason.STOP)


def test_without_jobs_there_is_no_backlog() -> None:
    backlog = make()
    one = job(1)
    backlog.enter(one)
    runs(backlog, one, 3)
    backlog.leave(one, EndReason.CANCELLED)
    assert predicted(backlog) == IDLE


def test_before_a_worker_has_said_what_jobs_cost_nothing_is_foreseen() -> None:
    backlog = Backlog(BATCH, None)
    backlog.enter(job(1))
    assert backlog.predicted() is None


def test_jobs_that_wait_for_the_first_worker_count_once_it_has_come() -> None:
    waiting = Backlog(BATCH, None)
    jobs = [job(number) for number in range(8)]
    for one in jobs:
        waiting.enter(one)
    waiting.calibrate(PROFILE, LARGE_POOL_TOKENS, 1, jobs)
    at_once = make()
    for number in range(8):
        at_once.enter(job(number))
    assert predicted(waiting) == predicted(at_once)


def test_the_work_is_prefills_and_the_expected_tokens_at_full_batches() -> None:
    backlog = make()
    taught(backlog, 200, 400)
    for number in range(40):
        backlog.enter(job(number))
    # 40 prefills of 0.1 s, and 40 x about 200 tokens of which each takes a quarter of an iteration.
    assert predicted(backlog).work_s == pytest.approx(40 * 0.1 + 40 * 200 * TOKEN_S / MAX_BATCH, rel=0.15)


def test_a_prefill_is_work_until_the_first_token() -> None:
    backlog = make()
    one = job(1, prompt_tokens=900)
    backlog.enter(one)
    before_s = predicted(backlog).work_s
    runs(backlog, one, 1)
    assert before_s - predicted(backlog).work_s == pytest.approx(0.9, rel=0.1)


def test_a_job_that_comes_from_another_group_is_prefilled_with_all_its_tokens() -> None:
    backlog = make()
    taught(backlog, 200, 400)
    moved = job(1)
    moved.known_tokens += 150
    backlog.enter(moved)
    # 0.25 s of prefill; of 200 tokens 150 are made.
    assert predicted(backlog).work_s == pytest.approx(0.25 + 60 * TOKEN_S / MAX_BATCH, rel=0.25)
    runs(backlog, moved, 1)
    assert predicted(backlog).work_s < 0.25


def test_no_more_is_expected_than_the_jobs_may_make() -> None:
    backlog = make()
    taught(backlog, 800, 100)
    for number in range(40):
        backlog.enter(job(number, max_tokens=8))
    assert predicted(backlog).work_s == pytest.approx(40 * 0.1 + 40 * 8 * TOKEN_S / MAX_BATCH)


def test_a_few_jobs_take_as_long_as_the_longest_of_them_and_many_as_their_work() -> None:
    backlog = make()
    taught(backlog, 200, 400)
    backlog.enter(job(1))
    few = predicted(backlog)
    assert few.work_s == pytest.approx(0.1 + 200 * TOKEN_S / MAX_BATCH, rel=0.15)
    assert few.drain_s == pytest.approx(0.1 + 200 * TOKEN_S, rel=0.15)
    for number in range(2, 402):
        backlog.enter(job(number))
    many = predicted(backlog)
    assert many.drain_s == pytest.approx(many.work_s, rel=0.05)


@pytest.mark.parametrize(("profile", "expected"), [(PROFILE, 0.5), (BY_JOBS, 1.0)])
def test_half_a_batch_keeps_a_group_at_half_of_its_pace_unless_an_iteration_takes_twice_as_long_for_twice_the_jobs(
    profile: CostProfile, expected: float
) -> None:
    backlog = make(profile=profile)
    for number in range(MAX_BATCH // 2):
        backlog.enter(job(number))
    assert predicted(backlog).full_groups == pytest.approx(expected)
    for number in range(MAX_BATCH // 2, 3 * MAX_BATCH):
        backlog.enter(job(number))
    assert predicted(backlog).full_groups == pytest.approx(3.0)


def test_where_the_pool_is_small_fewer_run_at_once() -> None:
    roomy, cramped = make(), make(pool_tokens=500)
    for backlog in (roomy, cramped):
        taught(backlog, 200, 400)
        for number in range(40):
            backlog.enter(job(number))
    assert predicted(cramped).work_s > 1.5 * predicted(roomy).work_s


def test_a_policy_that_learns_is_asked_and_not_taught_twice() -> None:
    lengths = LengthDistribution()
    before = lengths.state_key()
    backlog = make(lengths)
    taught(backlog, 200, 50)
    assert lengths.state_key() == before


# --- groups ----------------------------------------------------------------------------------------------------------


def of_work(work_s: float, busy_share: float = 0.1, full_groups: float = 1000.0) -> GroupBacklog:
    return GroupBacklog(work_s, work_s, busy_share, full_groups)


def demand(least: int = 1, most: int = 8, quiet_s: float = 60.0) -> GroupDemand:
    return GroupDemand(DemandLimits(target_s=5.0, quiet_s=quiet_s, least=least, most=most))


def test_a_group_is_wanted_for_every_five_seconds_of_work() -> None:
    assert demand().update([of_work(4.0), of_work(8.5)], 0.0).wanted == 3


def test_no_more_groups_are_wanted_for_the_work_than_its_jobs_would_keep_busy() -> None:
    assert demand().update([of_work(30.0, full_groups=0.7)], 0.0).wanted == 1
    assert demand().update([of_work(30.0, full_groups=0.9)], 0.0).wanted == 2
    assert demand().update([of_work(30.0, full_groups=1.0), of_work(4.0, full_groups=1.3)], 0.0).wanted == 3


def test_wanted_groups_stay_within_their_limits() -> None:
    assert demand(least=2, most=4).update([of_work(100.0)], 0.0).wanted == 4
    assert demand(least=2, most=4).update([IDLE], 0.0).wanted == 2


def test_without_jobs_none_is_wanted_and_a_job_that_waits_wants_one() -> None:
    assert demand(least=0).update([IDLE], 0.0).wanted == 0
    assert demand(least=0).update([None], 0.0).wanted == 1
    assert demand(least=0).update([of_work(0.01)], 0.0).wanted == 1


def test_groups_that_stay_full_ask_for_room_although_nobody_waits() -> None:
    wanted = demand()
    assert wanted.update([of_work(1.0, busy_share=1.0)], 0.0).wanted == 1
    assert wanted.update([of_work(1.0, busy_share=1.0)], 60.0).wanted == 2


def test_what_ran_a_moment_ago_asks_for_no_group_once_nothing_runs() -> None:
    wanted = demand(least=0, quiet_s=0.0)
    assert wanted.update([of_work(1.0, busy_share=1.0)], 0.0).wanted == 1
    assert wanted.update([of_work(1.0, busy_share=1.0)], 5.0).wanted == 1
    assert wanted.update([IDLE], 5.1).wanted == 0


def test_more_are_wanted_at_once_and_fewer_only_after_the_quiet_time() -> None:
    wanted = demand(quiet_s=60.0)
    assert [wanted.update([of_work(work_s)], now_s).wanted for now_s, work_s in ((0, 4), (1, 19), (2, 4))] == [1, 4, 4]
    assert wanted.update([of_work(14.0)], 30.0).wanted == 4
    assert wanted.update([of_work(4.0)], 60.0).wanted == 4
    # The four were last wanted a quiet time ago, the three are not.
    assert wanted.update([of_work(4.0)], 63.0).wanted == 3
    assert wanted.update([of_work(4.0)], 95.0).wanted == 1


def test_the_quiet_time_is_remembered_in_bounded_memory() -> None:
    wanted = demand(most=1000)
    for number in range(10_000):
        wanted.update([of_work(5.0 * (1000 - number % 1000))], number * 0.01)
        assert len(wanted._recent) <= 70


@pytest.mark.parametrize("length", [1, 3, 16, 40])
def test_a_job_that_outlives_all_that_were_seen_is_foreseen_at_every_length(length: int) -> None:
    backlog = make()
    taught(backlog, length, jobs=3000)
    one = job(1, max_tokens=2000)
    backlog.enter(one)
    for _ in range(1, 2000):
        runs(backlog, one, 1)
        assert TOKEN_S <= predicted(backlog).drain_s <= 2000 * TOKEN_S
