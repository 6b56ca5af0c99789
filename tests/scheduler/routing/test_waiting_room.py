"""Jobs that wait for a worker group: before the first one, after the last one, and after a restart."""

import pytest

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.domain.submission import ServingLimits
from services.scheduler.machine.scheduler_events import End, Reject, RejectKind, Submit
from services.scheduler.routing import router, waiting_room
from services.scheduler.routing.router import Resumed, Routed
from services.scheduler.routing.waiting_room import WaitingRoom
from services.scheduler.scheduler_config import PolicyName
from tests.scheduler.routing.routed_groups import RoutedGroups
from tests.scheduler.routing.test_router import groups

CONTEXT = 4000


def no_groups(**knobs: object) -> RoutedGroups:
    """None so far, for a model whose context is known."""
    return groups(1.0, 1.0, max_model_len=CONTEXT, **knobs)  # type: ignore[arg-type]


def test_before_the_first_group_jobs_are_admitted_by_the_models_context() -> None:
    none = no_groups()
    assert none.router.limits == ServingLimits(True, CONTEXT, CONTEXT)
    assert none.route("a") is None
    refused = none.route("b", CONTEXT, 1)
    assert isinstance(refused, Reject)
    assert (refused.kind, refused.field) == (RejectKind.INVALID, "prompt")


def test_no_more_jobs_wait_than_may_be_queued() -> None:
    none = no_groups(max_queued_jobs=2)
    assert [none.route(name) for name in "ab"] == [None, None]
    refused = none.route("c")
    assert isinstance(refused, Reject)
    assert refused.kind is RejectKind.FULL


def test_jobs_that_waited_go_to_the_group_that_comes_in_their_order_and_with_their_age() -> None:
    none = no_groups()
    for name in "abc":
        none.route(name, max_tokens=3)
        none.now_s += 1.0
    none.add(0)
    none.join(0)
    assert none.jobs_of(0) == ["a", "b", "c"]
    assert [job.arrived_s for job in none.machines[0].jobs.values()] == [0.0, 1.0, 2.0]
    assert len(none.router.room) == 0
    none.run_all()
    assert none.tokens == {"a": 3, "b": 3, "c": 3}


def test_many_jobs_that_waited_are_placed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MOST_MOVES", 4)
    none = no_groups(max_batch=16)
    for number in range(10):
        none.route(f"j{number}")
    none.add(0)
    none.join(0)
    assert len(none.jobs_of(0)) == 4
    none.turn(0)
    none.turn(0)
    assert len(none.jobs_of(0)) == 10


def test_a_job_that_turns_out_to_fit_no_group_is_refused_by_the_name_of_the_field() -> None:
    none = no_groups(pool_tokens=(100, 100))
    none.route("small", 10, 50)
    none.route("large", 90, 90)
    none.add(0)
    none.join(0)
    [refused] = none.refused
    assert (refused.job_id, refused.kind, refused.field) == ("large", RejectKind.INVALID, "sampling.max_tokens")
    assert none.router.rejections == {"invalid": 1}
    assert none.jobs_of(0) == ["small"]


def test_a_job_that_waits_keeps_its_deadline_and_can_be_cancelled() -> None:
    none = no_groups()
    none.route("late", deadline_s=5.0)
    none.route("unwanted", deadline_s=2.0)
    none.now_s = 1.5
    ended = none.router.cancel_waiting(JobId("unwanted"), EndReason.CANCELLED, none.now_s)
    assert ended == End(JobId("unwanted"), EndReason.CANCELLED, 0, 1.5, 0.0, 0.0)
    assert none.router.cancel_waiting(JobId("unwanted"), EndReason.CANCELLED, none.now_s) is None
    assert none.router.room.next_s() == 2.0
    assert none.router.expire_waiting(4.9) == []
    assert none.router.expire_waiting(5.0) == [End(JobId("late"), EndReason.DEADLINE, 0, 5.0, 0.0, 0.0)]
    assert none.router.admission.queued_jobs == 0
    none.check()


def test_deadlines_of_jobs_that_left_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "LEAST_SWEEP", 8)
    room = WaitingRoom()
    for number in range(100):
        job_id = JobId(f"j{number}")
        room.add(Submit(job_id, 1, 1, 1000.0 + number), 0.0)
        room.take(job_id)
    room.add(Submit(JobId("stays"), 1, 1, 7.0), 0.0)
    assert len(room._deadlines) < 16
    assert [end.job_id for end in room.expire(5000.0)] == ["stays"]


def test_the_limits_of_the_last_group_hold_when_it_is_forgotten() -> None:
    one = no_groups(pool_tokens=(500, 500))
    one.add(0)
    one.join(0)
    one.lose(0)
    one.router.remove_group(0)
    assert one.router.limits == ServingLimits(True, CONTEXT, 500)
    assert one.route("a") is None
    refused = one.route("b", 400, 200)
    assert isinstance(refused, Reject)
    assert refused.field == "sampling.max_tokens"


@pytest.mark.parametrize("policy", list(PolicyName))
def test_every_policy_takes_jobs_that_waited(policy: PolicyName) -> None:
    none = no_groups(policy=policy)
    for name in "ab":
        none.route(name, max_tokens=2)
    none.add(0)
    none.join(0)
    none.run_all()
    assert none.tokens == {"a": 2, "b": 2}


def test_a_job_that_another_scheduler_began_waits_with_its_tokens_and_goes_on() -> None:
    none = no_groups()
    none.now_s = 50.0
    assert none.route("a", max_tokens=8, resumed=Resumed(5, 20.0)) is None
    none.now_s = 60.0
    none.add(0)
    none.join(0)
    [job] = none.machines[0].jobs.values()
    assert (job.output_tokens, job.arrived_s) == (5, 20.0)
    none.run_all()
    assert none.tokens == {"a": 8}


def test_placing_is_told_with_the_group() -> None:
    none = no_groups()
    none.route("a")
    none.add(0)
    none.join(0, settles=False)
    [placed] = none.router.placements(none.now_s)
    assert isinstance(placed, Routed)
    assert isinstance(placed.submit, Submit)
    assert (placed.group, placed.submit.job_id, placed.submit.arrived_s) == (0, "a", 0.0)
