"""When a job's next token is due, and who is lent some because it would come too late."""

import pytest

from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.scheduler.job import CLOSING, OUT, RESIDENT, Job, JobState
from services.scheduler.machine.token_deadlines import (
    LOST_LOOK_S,
    MOST_TOKENS_BEHIND,
    TOKENS_LENT,
    TokenDeadlines,
)

LIMIT_S = 0.1
GAIN_S = 0.05


def started(output_tokens: int = 1, state: JobState = RESIDENT) -> Job:
    """A job that made its first token at 1 s."""
    rank = Rank(1, 0.0, 1)
    job = Job(JobId("a"), 1, 1, 10, 500, 0.0, None, rank, rank, 10 + output_tokens, 10 + output_tokens)
    job.state, job.first_token_s = state, 1.0
    return job


def taken_at(job: Job, now_s: float) -> tuple[Job, int] | None:
    """What is lent if the job has stood still since its first token."""
    deadlines = TokenDeadlines(LIMIT_S)
    deadlines.sampled_first(job, 1.0)
    deadlines.look(now_s, 10)
    return deadlines.take(now_s, GAIN_S)


def test_the_token_after_n_is_due_n_limits_after_the_first() -> None:
    for made in (1, 2, 30):
        assert taken_at(started(made), 1.0 + LIMIT_S * made - 0.01) is None
        job = started(made)
        assert taken_at(job, 1.0 + LIMIT_S * made + 0.01) == (job, TOKENS_LENT)


def test_a_job_that_is_behind_is_lent_as_many_tokens_more_as_bring_it_back() -> None:
    job = started()
    assert taken_at(job, 1.0 + LIMIT_S + 10.5 * GAIN_S) == (job, TOKENS_LENT + 10)


def test_a_job_that_is_far_behind_is_given_up_until_it_has_run_again() -> None:
    job = started()
    late_s = 1.0 + LIMIT_S * (1 + MOST_TOKENS_BEHIND) + 0.01
    deadlines = TokenDeadlines(LIMIT_S)
    deadlines.sampled_first(job, 1.0)
    deadlines.look(late_s, 10)
    assert deadlines.take(late_s, GAIN_S) is None
    job.known_tokens += 20
    again_s = late_s + LOST_LOOK_S
    deadlines.look(again_s, 10)
    assert deadlines.take(again_s, GAIN_S) is not None


def test_whoever_runs_has_ended_or_is_away_is_lent_nothing() -> None:
    now_s = 1.0 + 2 * LIMIT_S
    running = started()
    running.in_flight = 1
    lent = started()
    lent.lent_to_token = 20
    for job in (running, lent, started(state=OUT), started(state=CLOSING)):
        assert taken_at(job, now_s) is None


@pytest.mark.parametrize("change", ["ran", "ended"])
def test_what_was_due_is_judged_again_when_it_is_its_turn(change: str) -> None:
    job = started()
    deadlines = TokenDeadlines(LIMIT_S)
    deadlines.sampled_first(job, 1.0)
    deadlines.look(1.15, 10)
    assert deadlines.has_waiting
    if change == "ran":
        job.known_tokens += 5
    else:
        job.state = CLOSING
    assert deadlines.take(1.2, GAIN_S) is None
    assert not deadlines.has_waiting


def test_the_first_to_be_due_comes_first_and_a_look_is_bounded() -> None:
    deadlines = TokenDeadlines(LIMIT_S)
    jobs = [started(3), started(1), started(2)]
    for number, job in enumerate(jobs):
        job.arrival_number = number
        deadlines.sampled_first(job, 1.0)
    deadlines.look(1.4, 2)
    deadlines.look(1.4, 2)
    taken = [deadlines.take(1.4, GAIN_S) for _ in range(4)]
    assert [None if one is None else one[0].output_tokens for one in taken] == [1, 2, 3, None]
