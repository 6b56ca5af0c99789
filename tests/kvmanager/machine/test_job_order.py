"""Jobs in their order, compared with a sorted list."""

from collections import Counter
from random import Random

import pytest

from services.domain.ids import JobId
from services.domain.protocol import Rank
from services.kvmanager.machine.job_order import JobOrder
from services.kvmanager.machine.kv_job import KvJob


def put(order: JobOrder, number: int, level: int) -> KvJob:
    job = KvJob(JobId(f"job-{number}"), 2, 4, number, 0.0)
    job.rank = Rank(level, float(number), number)
    order.add(job)
    return job


def rank_of(job: KvJob) -> Rank:
    assert job.rank is not None
    return job.rank


@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_come_move_and_go_stay_in_the_order_of_their_ranks(seed: int) -> None:
    random = Random(seed)
    order = JobOrder()
    jobs: list[KvJob] = []
    for number in range(1500):
        what = random.random()
        if what < 0.1 or not jobs:
            jobs.append(put(order, number, random.randrange(4)))
        elif what < 0.15:
            job = jobs.pop(random.randrange(len(jobs)))
            order.remove(job)
        else:
            job = random.choice(jobs)
            step = random.choice((1e-6, 50.0, -50.0))
            rank = Rank(random.choice((rank_of(job).level, 1)), rank_of(job).key + step, rank_of(job).arrival_number)
            order.move(job, rank)
            job.rank = rank
        by_rank = sorted(jobs, key=rank_of)
        assert list(order) == by_rank
        assert order.slice(2, 7) == by_rank[2:7]
        if by_rank:
            middle = rank_of(by_rank[len(by_rank) // 2])
            assert order.below(middle, 3) == [job for job in reversed(by_rank) if rank_of(job) > middle][:3]
        levels = Counter(rank_of(job).level for job in jobs)
        assert order.level_counts == [levels[level] for level in range(len(order.level_counts))]
