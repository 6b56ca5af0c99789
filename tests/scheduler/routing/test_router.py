"""Which group gets a job, and which jobs move. The machines are real."""

import pytest

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import Cancel, Reject, RejectKind, Withdraw
from services.scheduler.policies.length_distribution import PRIOR_MEAN_TOKENS
from services.scheduler.routing import router
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.routing.routed_groups import RoutedGroups


def cost(factor: float = 1.0) -> CostProfile:
    """A prefill of n tokens takes n ms, a decode 10 ms and 1 ms more for each job of the batch; `factor` times that."""
    return CostProfile(
        (PrefillCost(1, 0.001 * factor), PrefillCost(1000, factor)),
        (DecodeCost(1, 1, 0.011 * factor), DecodeCost(16, 1, 0.026 * factor)),
    )


def groups(
    *factors: float,
    pool_tokens: tuple[int, ...] = (),
    resident_jobs: int = 1_000_000,
    max_model_len: int | None = None,
    **knobs: object,
) -> RoutedGroups:
    """As many groups as there are factors; their workers have joined. With `max_model_len` they have not begun."""
    config = SchedulerConfig(**({"policy": PolicyName.FCFS, "max_batch": 4, "starvation_limit_s": None} | knobs))  # type: ignore[arg-type]
    made = RoutedGroups(config, [cost(factor) for factor in factors], pool_tokens, resident_jobs, max_model_len)
    made.join()
    return made


# --- admission -------------------------------------------------------------------------------------------------------


def test_bounds_hold_for_all_groups_together() -> None:
    two = groups(1.0, 1.0, max_queued_jobs=3)
    assert [two.submit(name) for name in "abc"] == [0, 1, 0]
    refused = two.route("d")
    assert isinstance(refused, Reject)
    assert refused.kind is RejectKind.FULL
    assert two.router.rejections == {"full": 1}
    two.turn(1, Cancel(JobId("b"), EndReason.CANCELLED))
    assert isinstance(two.route("d"), int)


def test_nothing_is_admitted_before_the_first_worker() -> None:
    two = RoutedGroups(SchedulerConfig(), [cost(), cost()])
    refused = two.route("a")
    assert isinstance(refused, Reject)
    assert refused.kind is RejectKind.NOT_READY
    two.join(1)
    assert two.submit("a") == 1


def test_a_job_that_fits_only_the_larger_group_goes_there_and_one_that_fits_none_is_refused() -> None:
    two = groups(1.0, 1.0, pool_tokens=(100, 1000))
    assert [two.submit(f"large-{number}", 500, 400) for number in range(3)] == [1, 1, 1]
    refused = two.route("huge", 900, 200)
    assert isinstance(refused, Reject)
    assert (refused.kind, refused.field) == (RejectKind.INVALID, "sampling.max_tokens")


# --- the choice of a group -------------------------------------------------------------------------------------------


def test_equal_groups_share_jobs_evenly() -> None:
    four = groups(1.0, 1.0, 1.0, 1.0)
    chosen = [four.submit(f"j{number}") for number in range(40)]
    assert [chosen.count(group) for group in range(4)] == [10, 10, 10, 10]


def test_jobs_are_shared_by_work_and_not_by_number() -> None:
    two = groups(1.0, 1.0)
    assert two.submit("long", 3000, 400) == 0
    assert [two.submit(f"short-{number}") for number in range(4)] == [1, 1, 1, 1]


def test_a_group_that_is_slow_by_its_profile_gets_less() -> None:
    two = groups(1.0, 10.0)
    chosen = [two.submit(f"j{number}") for number in range(44)]
    assert 2 <= chosen.count(1) <= 8


def test_a_group_that_turns_out_to_be_slow_in_service_gets_less() -> None:
    two = groups(1.0, 1.0, max_queued_jobs=1000)
    two.slowdowns[1] = 10.0
    assert two.submit("warm", max_tokens=200) == 0
    assert two.submit("cold", max_tokens=200) == 1
    two.run(0, 100)
    two.run(1, 100)
    chosen = [two.submit(f"j{number}") for number in range(44)]
    assert chosen.count(1) <= 8


def test_a_group_that_joins_is_taken_to_be_as_slow_in_service_as_the_others() -> None:
    two = groups(1.0, 1.0, max_queued_jobs=1000)
    two.lose(1)
    two.slowdowns[0] = 3.0
    two.submit("warm", max_tokens=200)
    two.run(0, 100)
    two.join(1)
    chosen = [two.submit(f"j{number}") for number in range(20)]
    assert 8 <= chosen.count(1) <= 12


def test_a_group_with_little_kv_runs_fewer_jobs_at_a_time_and_gets_less() -> None:
    two = groups(1.0, 1.0, pool_tokens=(100_000, 250), max_batch=16)
    chosen = [two.submit(f"j{number}", 100, 100) for number in range(40)]
    assert chosen.count(1) <= 10


@pytest.mark.parametrize(
    ("policy", "expected"), [(PolicyName.SRPT, {0, 1}), (PolicyName.FIXED_PRIORITY, {0, 1}), (PolicyName.FCFS, {1})]
)
def test_only_work_that_ranks_before_a_job_counts(policy: PolicyName, expected: set[int]) -> None:
    """Group 0 is full of long jobs. Where short jobs overtake them, they count only as company in the batch."""
    two = groups(1.0, 1.0, policy=policy, max_batch=1)
    for number in range(3):
        assert two.submit(f"long-{number}", 2000, 400) == number % 2
    chosen = {two.submit(f"short-{number}", 10, 10) for number in range(4)}
    assert chosen == expected


def test_output_lengths_are_learnt_from_the_jobs_of_all_groups() -> None:
    two = groups(1.0, 1.0)
    assert two.router._lengths.mean_rest_tokens(0) == pytest.approx(PRIOR_MEAN_TOKENS, rel=0.05)
    for number in range(64):
        two.submit(f"j{number}", 10, 4)
    two.run_all()
    assert two.router._lengths.mean_rest_tokens(0) < 20


def test_a_choice_looks_at_no_more_jobs_when_more_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    two = groups(1.0, 1.0, policy=PolicyName.FIXED_PRIORITY, max_queued_jobs=10_000)
    monkeypatch.setattr(two, "check", lambda: None)
    looks: list[int] = []
    monkeypatch.setattr(Scheduler, "check", lambda self: None)
    for count in (200, 2000):
        for number in range(count):
            two.submit(f"{count}-{number}", 10 + number * 7919 % 1000, 10)
        order = two.router.forecasts[0].order
        looks.append(len(order._parts[order._at(Rank(0, 500.0, 0))].jobs) + len(order._parts))
    assert looks[1] <= 128 + 4 * 1100 / 128


# --- a group dies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PolicyName)
def test_jobs_of_a_group_that_dies_go_on_in_the_other_from_their_last_token(policy: PolicyName) -> None:
    two = groups(1.0, 1.0, policy=policy)
    for number in range(12):
        two.submit(f"j{number}", 10, 20)
    two.run(0, 6)
    two.run(1, 6)
    before = dict(two.tokens)
    assert any(before.values())
    two.lose(0)
    assert two.jobs_of(0) == []
    two.run_all()
    assert two.tokens == {f"j{number}": 20 for number in range(12)}
    assert {move.from_group for move in two.moved} == {0}


def test_a_job_takes_its_age_and_its_level_with_it() -> None:
    two = groups(1.0, 1.0, policy=PolicyName.SKIP_JOIN_MLFQ, max_batch=1, plans_in_flight=1)
    two.submit("a", 10, 100, deadline_s=1e6)
    two.submit("b", 10, 100)
    two.run(0, 5)
    there = two.machines[0].jobs[JobId("a")]
    assert there.place.level > 0
    two.lose(0)
    here = two.machines[1].jobs[JobId("a")]
    assert (here.place.level, here.known_tokens, here.arrived_s) == (there.place.level, there.known_tokens, 0.0)
    assert (here.service_s, here.deadline_s, here.first_token_s) == (there.service_s, 1e6, there.first_token_s)


def test_under_fcfs_a_job_that_moves_stays_before_those_that_came_later() -> None:
    two = groups(1.0, 1.0, max_batch=1)
    names = [f"j{number}" for number in range(8)]
    for name in names:
        two.submit(name)
    two.lose(0)
    assert sorted(names, key=lambda name: two.machines[1].jobs[JobId(name)].place) == names


def test_jobs_wait_in_their_group_while_no_group_has_a_worker_and_then_go_to_the_first() -> None:
    two = groups(1.0, 1.0)
    for number in range(4):
        two.submit(f"j{number}", 10, 5)
    two.lose(0)
    two.lose(1)
    assert len(two.jobs_of(0)) + len(two.jobs_of(1)) == 4
    two.submit("late", 10, 5)
    two.join(0)
    assert len(two.jobs_of(0)) == 5
    two.run_all()
    assert set(two.tokens.values()) == {5}


def test_a_job_too_large_for_the_living_groups_waits_for_its_own() -> None:
    two = groups(1.0, 1.0, pool_tokens=(100_000, 100))
    two.submit("large", 300, 5)
    two.submit("small", 10, 5)
    two.lose(0)
    two.submit("more", 10, 5)
    assert (two.jobs_of(0), set(two.jobs_of(1))) == (["large"], {"small", "more"})
    two.join(0)
    two.run_all()
    assert two.tokens == {"large": 5, "small": 5, "more": 5}


def test_many_jobs_move_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MOST_MOVES", 5)
    two = groups(1.0, 1.0)
    for number in range(16):
        two.submit(f"j{number}", 10, 5)
    two.lose(0)
    assert (len(two.jobs_of(0)), len(two.moved)) == (3, 5)
    two.run(1)
    assert (len(two.jobs_of(0)), len(two.moved)) == (0, 8)


# --- a group idles ---------------------------------------------------------------------------------------------------


def test_a_group_that_idles_takes_waiting_jobs_of_another_the_first_ones_first() -> None:
    two = groups(1.0, 1.0, max_batch=2, resident_jobs=2)
    two.lose(1)
    for number in range(8):
        assert two.submit(f"j{number}", 10, 50) == 0
    two.join(1)
    assert (two.jobs_of(1), [move.from_group for move in two.moved]) == (["j2", "j3"], [0, 0])


def test_what_a_group_has_begun_stays_with_it() -> None:
    two = groups(1.0, 1.0, max_batch=2)
    two.lose(1)
    for name in "abcd":
        two.submit(name, 10, 50)
    two.join(1)
    assert (two.jobs_of(0), two.jobs_of(1)) == (["a", "b"], ["c", "d"])
    two.turn(0, Withdraw(JobId("a")))
    assert two.jobs_of(0) == ["a", "b"]


def test_a_slow_group_that_idles_takes_no_job_that_ends_sooner_where_it_waits() -> None:
    two = groups(1.0, 50.0, max_batch=2, resident_jobs=2)
    two.lose(1)
    for number in range(6):
        two.submit(f"j{number}", 10, 50)
    two.join(1)
    assert two.moved == []
