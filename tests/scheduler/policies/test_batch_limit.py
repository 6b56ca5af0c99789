"""How many jobs an iteration may have where nobody says it: what the worker's profile says is best."""

from math import inf

import pytest

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.scheduler.policies.batch_limit import BatchLimit, best_batch
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig

LARGE_POOL_TOKENS = 1_000_000
UNSAID = SchedulerConfig(chooses_batch=True)


def profile(milliseconds_by_batch: dict[int, float]) -> CostProfile:
    """Decodes of these batches take so long with 256 tokens of context, and more with more."""
    decode = [
        DecodeCost(batch, context, ms * (1 + (context - 256) / 10_000) / 1000)
        for batch, ms in milliseconds_by_batch.items()
        for context in (64, 256, 1024)
    ]
    return CostProfile((PrefillCost(16, 0.001),), tuple(decode))


READS_WEIGHTS = profile({1: 5.0, 16: 5.6, 64: 8.0, 128: 14.0, 256: 27.0})
"""A GPU: nearly all of an iteration is reading the weights."""
SMALL = profile({1: 4.0, 16: 14.6, 32: 27.8, 64: 56.3})
"""30M parameters on two cores: from 16 jobs on the products take all the time, and no batch makes more tokens."""
LARGE = profile({1: 44.0, 8: 86.0, 16: 105.0, 32: 193.0, 64: 476.0})
"""A model whose batches of 16 already take longer than a token should."""


@pytest.mark.parametrize(("cost", "jobs"), [(READS_WEIGHTS, 256), (SMALL, 64), (LARGE, 16)])
def test_as_many_as_make_nearly_all_tokens_a_second_and_each_jobs_in_time(cost: CostProfile, jobs: int) -> None:
    batch = BatchLimit(UNSAID)
    batch.calibrate(cost, LARGE_POOL_TOKENS)
    assert batch.jobs == jobs


def test_a_batch_that_makes_fewer_tokens_a_second_is_not_chosen_however_fast_it_is() -> None:
    assert best_batch(profile({1: 1.0, 16: 4.0, 32: 8.0, 64: 19.0}), inf) == 32


def test_without_a_limit_on_later_tokens_an_iteration_takes_as_long_as_it_likes() -> None:
    config = SchedulerConfig(chooses_batch=True, per_token_limit_s=None)
    batch = BatchLimit(config)
    batch.calibrate(profile({16: 200.0, 64: 500.0}), LARGE_POOL_TOKENS)
    assert batch.jobs == 64


def test_no_more_than_the_device_pool_has_room_for_but_the_papers_batch() -> None:
    batch = BatchLimit(UNSAID)
    batch.calibrate(READS_WEIGHTS, 100 * 256)
    assert batch.jobs == 100
    batch.calibrate(READS_WEIGHTS, 1000)
    assert batch.jobs == 16


def test_no_more_than_an_iteration_has_tokens() -> None:
    batch = BatchLimit(SchedulerConfig(max_batch=12, chooses_batch=True, max_batch_tokens=12))
    batch.calibrate(READS_WEIGHTS, LARGE_POOL_TOKENS)
    assert batch.jobs == 12


def test_before_the_first_worker_it_is_the_papers_and_each_worker_chooses_anew() -> None:
    batch = BatchLimit(UNSAID)
    assert batch.jobs == 16
    batch.calibrate(SMALL, LARGE_POOL_TOKENS)
    batch.calibrate(LARGE, LARGE_POOL_TOKENS)
    assert batch.jobs == 16


@pytest.mark.parametrize("policy", [PolicyName.GITTINS, PolicyName.STATIC, PolicyName.FCFS])
def test_what_was_said_holds_whatever_the_profile_says(policy: PolicyName) -> None:
    batch = BatchLimit(SchedulerConfig(policy=policy, max_batch=8))
    batch.calibrate(READS_WEIGHTS, LARGE_POOL_TOKENS)
    assert batch.jobs == 8
