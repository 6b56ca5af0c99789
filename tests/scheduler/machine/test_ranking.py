"""The order of jobs, compared with a sorted list of all jobs."""

from random import Random

import pytest

from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.scheduler.job import Job
from services.scheduler.machine.ranking import LEAST_SWEEP, Ranking


def ranked(number: int, level: int = 0) -> Job:
    rank = Rank(level, float(number), number)
    return Job(JobId(f"job-{number}"), number, number, 4, 8, 0.0, None, rank, rank, 4, 4)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_ready_jobs_come_by_rank_and_the_top_one_is_the_first_of_all(seed: int) -> None:
    random = Random(seed)
    ranking = Ranking()
    jobs: list[Job] = []
    for number in range(3000):
        what = random.random()
        if what < 0.05 or not jobs:
            jobs.append(ranked(number, random.randrange(4)))
            ranking.add(jobs[-1])
        elif what < 0.08:
            ranking.remove(jobs.pop(random.randrange(len(jobs))))
        elif what < 0.6:
            job = random.choice(jobs)
            ranking.place(job, Rank(random.randrange(4), random.uniform(0.0, 9.0), job.arrival_number))
        else:
            ranking.set_ready(random.choice(jobs), random.random() < 0.5)
        ranking.hold_top()
        if ranking.top is not None:
            ranking.ran(ranking.top)
            ranking.hold_top()
        by_rank = sorted(jobs, key=lambda job: job.rank)
        assert list(ranking.by_rank()) == by_rank
        assert list(ranking.ready()) == [job for job in by_rank if job.is_ready]
        assert ranking.top is (by_rank[0] if by_rank else None)


def test_what_is_held_of_jobs_that_come_and_go_is_bounded_by_their_number() -> None:
    ranking = Ranking()
    jobs = [ranked(number) for number in range(10)]
    for job in jobs:
        ranking.add(job)
    for _ in range(LEAST_SWEEP):
        for job in jobs:
            ranking.set_ready(job, True)
            ranking.set_ready(job, False)
    assert len(ranking._other_ranks) <= LEAST_SWEEP + len(jobs)
    ranking.hold_top()
    assert ranking.top is jobs[0]
