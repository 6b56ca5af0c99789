"""A worker that was told to end: which jobs end in its group, which leave, and when."""

from services.domain.ids import JobId
from services.scheduler.scheduler_config import PolicyName
from tests.scheduler.routing.routed_groups import RoutedGroups
from tests.scheduler.routing.test_router import groups

LONG_S, SHORT_S = 1000.0, 0.5


def two_busy_groups(**knobs: object) -> RoutedGroups:
    """Jobs "a" and "c" run in group 0, "b" and "d" in group 1; each has made a token."""
    two = groups(1.0, 1.0, **knobs)  # type: ignore[arg-type]
    assert [two.submit(name, max_tokens=100) for name in "abcd"] == [0, 1, 0, 1]
    two.run(0)
    two.run(1)
    return two


def test_a_group_whose_worker_is_about_to_end_gets_no_new_jobs() -> None:
    two = two_busy_groups()
    two.drain(0, LONG_S)
    assert {two.submit(f"j{number}") for number in range(8)} == {1}


def test_jobs_that_will_end_in_time_end_there() -> None:
    two = two_busy_groups()
    two.drain(0, LONG_S)
    two.run_all()
    assert two.moved == []
    assert two.tokens == dict.fromkeys("abcd", 100)


def test_jobs_that_will_not_end_in_time_leave_when_no_plan_names_them_with_all_their_tokens() -> None:
    two = two_busy_groups()
    two.drain(0, SHORT_S)
    # A plan under way names both. No further one does.
    assert two.jobs_of(0) == ["a", "c"]
    before = dict(two.tokens)
    while two.jobs_of(0):
        two.run(0)
    assert two.tokens[JobId("a")] > before[JobId("a")]
    assert {(move.job_id, move.from_group, move.to_group) for move in two.moved} == {("a", 0, 1), ("c", 0, 1)}
    known = {job_id: job.known_tokens - 10 for job_id, job in two.machines[1].jobs.items()}
    assert (known[JobId("a")], known[JobId("c")]) == (two.tokens[JobId("a")], two.tokens[JobId("c")])
    two.run_all()
    assert two.tokens == dict.fromkeys("abcd", 100)


def test_only_those_leave_that_would_not_end_in_time() -> None:
    two = groups(1.0, 1.0, policy=PolicyName.SRPT)
    assert two.submit("long", max_tokens=1000) == 0
    assert two.submit("elsewhere", max_tokens=1000) == 1
    assert two.submit("short", max_tokens=5) == 0
    two.run(0)
    two.drain(0, 2.0)
    two.run_all()
    assert [move.job_id for move in two.moved] == ["long"]
    assert two.tokens == {"long": 1000, "elsewhere": 1000, "short": 5}


def test_a_job_that_was_expected_to_end_in_time_and_will_not_leaves_after_all() -> None:
    two = two_busy_groups()
    two.drain(0, 10.0)
    assert not any(job.is_held for job in two.machines[0].jobs.values())
    # Iterations take thirty times as long as they did before.
    two.slowdowns[0] = 30.0
    while two.jobs_of(0):
        two.run(0)
    assert two.now_s < 10.0
    assert {move.job_id for move in two.moved} == {"a", "c"}
    two.run_all()
    assert two.tokens == dict.fromkeys("abcd", 100)


def test_jobs_that_wait_leave_at_once() -> None:
    two = two_busy_groups(max_batch=1)
    two.drain(0, SHORT_S)
    assert two.jobs_of(0) == ["a"]


def test_without_another_group_jobs_run_on_and_leave_when_one_comes() -> None:
    one = groups(1.0, 1.0, max_model_len=4000)
    one.add(0)
    one.join(0)
    one.submit("a", max_tokens=100)
    one.run(0)
    one.drain(0, SHORT_S)
    one.run(0, 5)
    assert one.tokens == {"a": 6}
    assert one.route("new") is None
    one.add(1)
    one.join(1)
    assert one.jobs_of(1) == ["new"]
    while one.jobs_of(0):
        one.run(0)
    assert set(one.jobs_of(1)) == {"a", "new"}
    one.run_all()
    assert one.tokens == {"a": 100, "new": 100}


def test_held_jobs_run_on_when_the_only_other_group_dies() -> None:
    two = two_busy_groups()
    two.drain(0, SHORT_S)
    assert all(job.is_held for job in two.machines[0].jobs.values())
    two.lose(1)
    assert not any(job.is_held for job in two.machines[0].jobs.values())
    two.run_all()
    assert (two.tokens[JobId("a")], two.tokens[JobId("c")]) == (100, 100)


def test_what_is_left_when_the_worker_ends_goes_on_in_the_next_group() -> None:
    one = groups(1.0, 1.0, max_model_len=4000)
    one.add(0)
    one.join(0)
    one.submit("a", max_tokens=100)
    one.run(0, 4)
    one.drain(0, SHORT_S)
    one.lose(0)
    assert one.jobs_of(0) == ["a"]
    one.add(1)
    one.join(1)
    assert (one.jobs_of(0), one.jobs_of(1)) == ([], ["a"])
    one.forget(0)
    one.run_all()
    assert one.tokens == {"a": 100}


def test_a_worker_that_comes_back_after_a_drain_gets_jobs_again() -> None:
    two = two_busy_groups()
    two.drain(0, SHORT_S)
    two.lose(0)
    two.join(0)
    assert 0 in {two.submit(f"j{number}") for number in range(8)}
    assert not any(job.is_held for job in two.machines[0].jobs.values())


# --- groups that come and go while there is one ----------------------------------------------------------------------


def test_a_second_group_that_comes_late_takes_waiting_jobs_and_the_books_are_right() -> None:
    one = groups(1.0, 1.0, max_model_len=4000, max_batch=2)
    one.add(0)
    one.join(0)
    for number in range(6):
        one.submit(f"j{number}", max_tokens=40)
    one.run(0, 10)
    one.add(1)
    one.join(1)
    assert len(one.jobs_of(1)) >= 2
    one.run_all()
    assert set(one.tokens.values()) == {40}


def test_a_group_that_is_forgotten_leaves_one_that_goes_on_alone() -> None:
    two = two_busy_groups()
    two.lose(1)
    two.forget(1)
    assert two.submit("e", max_tokens=5) == 0
    two.run_all()
    assert two.tokens == {**dict.fromkeys("abcd", 100), "e": 5}
