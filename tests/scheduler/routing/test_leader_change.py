"""Jobs that another scheduler began: they go on from their last token, with their age. The machines are real."""

import pytest

from services.domain.generation import EndReason
from services.domain.ids import JobId
from services.scheduler.machine.scheduler_events import Cancel, Submit, TakeIn, Tick
from services.scheduler.routing.router import Resumed, Routed
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from tests.scheduler.routing.routed_groups import RoutedGroups
from tests.scheduler.routing.test_router import cost

JOBS = {"short": (5, 3), "long": (40, 12), "late": (10, 7)}
"""Prompt tokens and max_tokens."""
MOST_RUNS = 12
POLICIES = [policy for policy in PolicyName if policy is not PolicyName.MLFQ_KILL]


def groups(policy: PolicyName, group_count: int, resident_jobs: int = 2) -> RoutedGroups:
    """Their workers have joined; not all jobs fit."""
    made = RoutedGroups(
        SchedulerConfig(policy=policy, max_batch=2), [cost()] * group_count, resident_jobs=resident_jobs
    )
    made.join()
    return made


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("group_count", [1, 2])
def test_rule_37_no_token_is_lost_or_repeated_wherever_the_leader_dies_and_however_much_news_dies_with_it(
    policy: PolicyName, group_count: int
) -> None:
    for runs in range(MOST_RUNS):
        for lost_news in range(3):
            first = groups(policy, group_count)
            for name, (prompt_tokens, max_tokens) in JOBS.items():
                first.submit(name, prompt_tokens, max_tokens)
            for number in range(runs):
                first.run_one_of([number % group_count, 0])
            # What the gateway has: a job ended for it when the last token came.
            journal = {name: max(0, first.tokens.get(JobId(name), 0) - lost_news) for name in JOBS}
            following = groups(policy, group_count)
            for name, made in journal.items():
                prompt_tokens, max_tokens = JOBS[name]
                if made < max_tokens:
                    following.submit(name, prompt_tokens, max_tokens, resumed=Resumed(made, -1.0))
            # RoutedGroups asserts that each token has the number after the last.
            following.run_all()
            assert {name: following.tokens.get(JobId(name), journal[name]) for name in JOBS} == {
                name: max_tokens for name, (_, max_tokens) in JOBS.items()
            }
            assert not following.router.jobs


@pytest.mark.parametrize("policy", [PolicyName.GITTINS, PolicyName.FCFS])
def test_a_job_keeps_its_age_from_scheduler_to_scheduler(policy: PolicyName) -> None:
    one = groups(policy, 1, resident_jobs=1)
    for name in ("first", "new"):
        one.submit(name, 10, 50)
    one.submit("old", 10, 50, resumed=Resumed(0, -1000.0))
    # The first is on top until it has run (rule 6).
    assert one.jobs_of(0) == ["first", "old", "new"]
    assert one.machines[0].jobs[JobId("old")].arrived_s == -1000.0


def test_what_a_job_had_is_computed_again_and_counted_as_that() -> None:
    one = groups(PolicyName.GITTINS, 1)
    one.submit("a", 10, 50, resumed=Resumed(4, 0.0))
    counters = one.machines[0].counters
    assert (counters.recomputed_tokens, counters.jobs_admitted) == (13, 1)
    job = one.machines[0].jobs[JobId("a")]
    assert (job.known_tokens, job.output_tokens, job.first_token_s) == (14, 4, one.now_s)


def test_the_admission_counts_resumed_jobs_like_others() -> None:
    one = RoutedGroups(SchedulerConfig(max_queued_jobs=1), [cost()])
    one.join()
    one.submit("a", resumed=Resumed(4, 0.0))
    assert not isinstance(one.route("b", resumed=Resumed(1, 0.0)), int)
    one.turn(0, Cancel(JobId("a"), EndReason.CANCELLED))
    assert isinstance(one.route("b", resumed=Resumed(1, 0.0)), int)


def test_a_deadline_holds_over_the_change() -> None:
    one = groups(PolicyName.GITTINS, 1)
    one.submit("a", 10, 50, deadline_s=5.0, resumed=Resumed(4, -10.0))
    one.now_s = 5.0
    one.turn(0, Tick())
    assert not one.router.jobs


def test_a_job_with_a_guide_has_it_still() -> None:
    following = groups(PolicyName.FCFS, 2)
    submit = Submit(JobId("a"), 5, 9, is_guided=True)
    routed = following.router.submit(submit, 1.0, Resumed(2, 0.0))
    assert isinstance(routed, Routed)
    assert isinstance(routed.submit, TakeIn)
    assert routed.submit.job.is_guided
