"""Length distributions are learnt without bias, and the index tells rising from falling hazards."""

from random import Random

import pytest

from services.scheduler.policies.length_distribution import (
    BUCKETS,
    EDGES,
    HALF_LIFE_S,
    POOL_JOBS,
    PRIOR_MEAN_TOKENS,
    LengthDistribution,
    bucket_of,
)


def learnt(lengths: list[int], *, running: list[int] | None = None) -> LengthDistribution:
    """The distribution after jobs of these lengths have ended, and others have made so many tokens and run on."""
    distribution = LengthDistribution()
    for length in lengths:
        for bucket in range(bucket_of(length)):
            distribution.passed(bucket)
        distribution.ended(bucket_of(length))
    for made in running or []:
        for bucket in range(bucket_of(made + 1)):
            distribution.passed(bucket)
    return distribution


def index_at(distribution: LengthDistribution, tokens: int) -> float:
    return distribution.index_tokens(bucket_of(tokens + 1))


def test_a_job_ends_in_the_bucket_that_its_last_token_belongs_to() -> None:
    assert EDGES[:8] == (0, 1, 2, 3, 4, 6, 8, 11)
    assert [bucket_of(tokens) for tokens in (1, 2, 3, 4, 5, 6, 7, 8, 9)] == [0, 1, 2, 3, 4, 4, 5, 5, 6]
    assert bucket_of(EDGES[-1] * 10) == BUCKETS - 1


def test_before_there_is_data_no_job_is_better_than_another_for_what_it_has_made() -> None:
    nothing = LengthDistribution()
    assert [nothing.index_tokens(bucket) for bucket in range(BUCKETS)] == pytest.approx([PRIOR_MEAN_TOKENS] * BUCKETS)
    assert nothing.mean_rest_tokens(0) == pytest.approx(PRIOR_MEAN_TOKENS, rel=1e-3)


def test_while_many_run_and_none_has_ended_they_are_expected_to_make_about_as_many_tokens_again() -> None:
    running = learnt([], running=[1024] * 1000)
    assert 512 < running.mean_rest_tokens(bucket_of(1025)) < 2 * 1024
    assert 1024 < running.mean_rest_tokens(0) < 3 * 1024


def test_the_mean_and_the_spread_are_those_of_the_lengths() -> None:
    random = Random(1)
    lengths = [max(1, round(random.lognormvariate(4.9, 0.85))) for _ in range(5000)]
    mean = sum(lengths) / len(lengths)
    spread = (sum((length - mean) ** 2 for length in lengths) / len(lengths)) ** 0.5
    distribution = learnt(lengths)
    assert distribution.mean_rest_tokens(0) == pytest.approx(mean, rel=0.05)
    assert distribution.variance_tokens**0.5 == pytest.approx(spread, rel=0.1)
    ascending = sorted(lengths)
    assert ascending[4900] / 1.5 < distribution.quantile_tokens(0.99) < ascending[4975] * 1.5


def test_where_the_hazard_rises_a_job_gets_better_the_longer_it_has_run() -> None:
    random = Random(2)
    regular = learnt([max(1, round(random.gauss(200, 20))) for _ in range(3000)])
    assert index_at(regular, 181) < 0.5 * index_at(regular, 91) < 0.5 * index_at(regular, 0)


def test_where_the_hazard_falls_a_job_gets_worse_the_longer_it_has_run() -> None:
    random = Random(3)
    heavy = learnt([min(int(random.paretovariate(0.7)), 5000) for _ in range(5000)])
    assert index_at(heavy, 0) < index_at(heavy, 8) < index_at(heavy, 64) < index_at(heavy, 512)


def test_the_index_stops_where_a_completion_is_cheapest() -> None:
    """Nine of ten jobs make one token, the tenth 128: the first token costs 1 / 0.9 tokens a completion, and whoever is
    past it has 127 to make.
    """
    two_kinds = learnt([1, 1, 1, 1, 1, 1, 1, 1, 1, 128] * 1000)
    assert index_at(two_kinds, 0) == pytest.approx(1 / 0.9, rel=0.02)
    assert index_at(two_kinds, 1) == pytest.approx(127, rel=0.25)  # a bucket is not finer


def test_a_prefill_is_paid_once_so_after_a_long_one_it_pays_to_stay() -> None:
    two_kinds = learnt([1, 1, 1, 1, 1, 1, 1, 1, 1, 128] * 1000)
    token_s = 0.01
    assert two_kinds.index_s(0, 0.0, token_s) == pytest.approx(two_kinds.index_tokens(0) * token_s)
    assert two_kinds.index_s(0, 0.5, token_s) == pytest.approx((0.5 + 0.01) / 0.9, rel=0.02)
    # After 50 s of prefill another 1.27 s for the tenth job are well spent.
    assert two_kinds.index_s(0, 50.0, token_s) == pytest.approx(50 + 0.01 * 13.7, rel=0.01)


def test_jobs_that_still_run_count_as_long_as_they_have_run() -> None:
    """While a queue builds up the short ones complete first. Taken alone, they would make all jobs look short."""
    short = [4] * 500
    completed_alone = learnt(short)
    with_running = learnt(short, running=[91] * 500)
    assert completed_alone.mean_rest_tokens(0) < 6
    assert with_running.mean_rest_tokens(0) > 0.5 * 91
    assert with_running.hazards()[bucket_of(4)] == pytest.approx(0.5, abs=0.02)


def test_what_was_learnt_fades_by_half_in_an_hour() -> None:
    distribution = learnt([100] * 1000)
    for _ in range(60):
        distribution.fade(HALF_LIFE_S * 10 / 60)
    for _ in range(100):
        distribution.ended(bucket_of(10))
    assert distribution.mean_rest_tokens(0) < 20


def test_a_class_of_few_jobs_is_like_all_jobs_and_one_of_many_like_its_own() -> None:
    pool = learnt([200] * 2000)
    own = LengthDistribution(pool)
    assert own.mean_rest_tokens(0) == pytest.approx(pool.mean_rest_tokens(0), rel=1e-3)
    for _ in range(20 * int(POOL_JOBS)):
        own.ended(bucket_of(1))
    assert own.mean_rest_tokens(0) < 0.2 * pool.mean_rest_tokens(0)


def test_the_memory_does_not_grow_with_the_number_of_jobs() -> None:
    random = Random(4)
    distribution = learnt([random.randrange(1, 1_000_000) for _ in range(2000)])
    assert len(distribution.hazards()) == BUCKETS < 64
