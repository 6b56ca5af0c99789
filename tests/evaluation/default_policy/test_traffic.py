"""The workloads are what they are called."""

import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from evaluation.default_policy.traffic import RUSH_PART, Shape, jobs_of
from services.simulator.server_setup import SimulatedJob


def gaps_cv(jobs: list[SimulatedJob]) -> float:
    gaps = [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(jobs)]
    return pstdev(gaps) / fmean(gaps)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("conv", 2000),
        Shape("code", 2000, cv=13.0),
        Shape("zipf", 2000, cv=4.0, theta=1.4),
        Shape("sharegpt", 2000),
        Shape("alpaca", 2000, wave=0.6),
        Shape("labels", 2000, together=64),
        Shape("two exponentials", 2000, rush=3.0),
    ],
)
def test_the_rate_is_met_exactly_and_changes_no_length(shape: Shape) -> None:
    slow, fast = jobs_of(shape, 1, 2.0), jobs_of(shape, 1, 20.0)
    assert len(slow) == shape.jobs
    assert slow[0].arrival_s == 0.0
    assert slow[-1].arrival_s == pytest.approx((shape.jobs - 1) / 2.0, rel=0.01)
    assert [job.arrival_s / 10 for job in slow] == pytest.approx([job.arrival_s for job in fast])
    assert [(job.prompt_tokens, job.output_tokens) for job in slow] == [
        (job.prompt_tokens, job.output_tokens) for job in fast
    ]


def test_the_real_trace_has_the_lengths_that_its_readme_tells() -> None:
    jobs = [job for seed in range(3) for job in jobs_of(Shape("conv", 3500), seed, 1.0)]
    assert fmean(job.prompt_tokens for job in jobs) == pytest.approx(1155, rel=0.1)
    assert fmean(job.output_tokens for job in jobs) == pytest.approx(211, rel=0.1)
    assert len({tuple(job.prompt_tokens for job in jobs[start : start + 50]) for start in (0, 3500, 7000)}) == 3


def test_code_is_what_is_published_of_it() -> None:
    jobs = jobs_of(Shape("code", 8000, cv=13.0), 1, 1.0)
    outputs = sorted(job.output_tokens for job in jobs)
    assert fmean(job.prompt_tokens for job in jobs) == pytest.approx(2048, rel=0.02)
    assert outputs[4000] == pytest.approx(13, abs=1)
    assert outputs[7920] == pytest.approx(252, rel=0.05)
    assert fmean(outputs) == pytest.approx(28, rel=0.1)
    assert 8 < gaps_cv(jobs) < 20


def test_the_rate_of_a_wave_swings_by_its_amplitude() -> None:
    jobs = jobs_of(Shape("zipf", 20_000, theta=1.1, wave=0.6, waves=2.0), 1, 1.0)
    eighth = 20_000 / 16
    by_part = [0] * 16
    for job in jobs:
        by_part[min(int(job.arrival_s / eighth), 15)] += 1
    swing = 0.6 * math.sqrt(8) / math.pi  # the mean of a sine over an eighth of its period, about its peak
    assert max(by_part) == pytest.approx(eighth * (1 + swing), rel=0.1)
    assert min(by_part) == pytest.approx(eighth * (1 - swing), rel=0.2)


def test_where_jobs_come_in_groups_each_group_comes_at_once() -> None:
    arrivals = [job.arrival_s for job in jobs_of(Shape("labels", 640, together=64), 1, 1.0)]
    assert [arrivals.count(at) for at in sorted(set(arrivals))] == [64] * 10


def test_in_a_rush_the_rate_of_the_middle_is_so_many_times_that_of_the_rest() -> None:
    arrivals = [job.arrival_s for job in jobs_of(Shape("zipf", 20_000, theta=1.1, rush=3.0), 1, 1.0)]
    begin, end = (arrivals[int(share * 20_000)] for share in RUSH_PART)
    inside = (RUSH_PART[1] - RUSH_PART[0]) * 20_000 / (end - begin)
    outside = (1.0 - RUSH_PART[1] + RUSH_PART[0]) * 20_000 / (arrivals[-1] - (end - begin))
    assert inside / outside == pytest.approx(3.0, rel=0.05)


def test_the_spread_of_sharegpt_like_outputs_is_ours_to_vary_and_the_mean_is_not() -> None:
    for sigma in (0.5, 1.0, 1.5):
        outputs = [job.output_tokens for job in jobs_of(Shape("sharegpt", 4000, sigma=sigma), 1, 1.0)]
        assert fmean(outputs) == pytest.approx(338, rel=0.02)
    narrow, wide = (
        pstdev(job.output_tokens for job in jobs_of(Shape("sharegpt", 4000, sigma=sigma), 1, 1.0))
        for sigma in (0.5, 1.5)
    )
    assert wide > 1.5 * narrow
