"""Lengths that stand in for published datasets, and those of a given ratio."""

from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from services.workloads.lengths import (
    ALPACA,
    DATASET_LARGEST,
    SHAREGPT,
    DatasetFit,
    Fit,
    LognormalLengths,
    fitted_lengths,
)
from services.workloads.workload import Workload, WorkloadKind, make_trace, split_by_ratio

MANY = Workload(
    jobs=40_000,
    rate=8.0,
    cv=1.0,
    theta=1.1,
    max_prompt_tokens=DATASET_LARGEST,
    max_output_tokens=DATASET_LARGEST,
    seed=7,
    kind=WorkloadKind.SHAREGPT,
)
OPT_CONTEXT = 2048


@pytest.mark.parametrize(
    ("kind", "prompt_mean", "output_mean"),
    [(WorkloadKind.SHAREGPT, 161.31, 337.99), (WorkloadKind.ALPACA, 19.31, 58.45)],
)
def test_dataset_like_lengths_have_the_published_means(
    kind: WorkloadKind, prompt_mean: float, output_mean: float
) -> None:
    trace = make_trace(replace(MANY, kind=kind))
    assert fmean(job.prompt_tokens for job in trace) == pytest.approx(prompt_mean, rel=0.02)
    assert fmean(job.output_tokens for job in trace) == pytest.approx(output_mean, rel=0.02)
    assert all(1 <= job.prompt_tokens + job.output_tokens <= OPT_CONTEXT for job in trace)


@pytest.mark.parametrize("fit", [SHAREGPT.prompt, SHAREGPT.output, ALPACA.prompt, ALPACA.output])
def test_the_fit_meets_the_mean_exactly(fit: Fit) -> None:
    assert fitted_lengths(fit, DATASET_LARGEST).mean == pytest.approx(fit.mean, abs=1e-6)


def test_sharegpt_varies_more_than_alpaca() -> None:
    def deviations(kind: WorkloadKind) -> tuple[float, float]:
        trace = make_trace(replace(MANY, kind=kind))
        return pstdev(job.prompt_tokens for job in trace), pstdev(job.output_tokens for job in trace)

    chat, instructions = deviations(WorkloadKind.SHAREGPT), deviations(WorkloadKind.ALPACA)
    assert chat[0] > instructions[0]
    assert chat[1] > instructions[1]


def test_the_median_of_a_lognormal_that_is_hardly_cut_is_that_of_its_logarithm() -> None:
    lengths = LognormalLengths(mu=4.0, sigma=0.5, largest=100_000)
    assert [lengths.quantile(share) for share in (0.16, 0.5, 0.84)] == pytest.approx(
        [54.6 / 1.65, 54.6, 54.6 * 1.65], rel=0.03
    )


def test_the_largest_length_cuts_without_moving_what_is_below() -> None:
    fit = SHAREGPT.output
    whole, cut = fitted_lengths(fit, DATASET_LARGEST), fitted_lengths(fit, 256)
    below = [whole.quantile(number / 5000) for number in range(5000)]
    kept = sorted(length for length in below if length <= 256)
    assert cut.quantile(1.0) == 256
    assert cut.quantile(0.5) == pytest.approx(kept[len(kept) // 2], abs=1)
    assert cut.mean < whole.mean


@pytest.mark.parametrize("dataset", [SHAREGPT, ALPACA])
def test_short_limits_of_a_workload_hold(dataset: DatasetFit) -> None:
    kind = WorkloadKind.SHAREGPT if dataset is SHAREGPT else WorkloadKind.ALPACA
    trace = make_trace(replace(MANY, jobs=500, kind=kind, max_prompt_tokens=10, max_output_tokens=5))
    assert max(job.prompt_tokens for job in trace) <= 10
    assert max(job.output_tokens for job in trace) <= 5


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 4.0, 16.0, 256.0])
def test_a_ratio_workload_has_that_ratio_of_prompt_to_output(ratio: float) -> None:
    trace = make_trace(replace(MANY, jobs=2000, kind=WorkloadKind.RATIO, ratio=ratio))
    prompts = sum(job.prompt_tokens for job in trace if job.output_tokens > 3)
    outputs = sum(job.output_tokens for job in trace if job.output_tokens > 3)
    assert prompts / outputs == pytest.approx(ratio, rel=0.05)
    assert max(job.prompt_tokens + job.output_tokens for job in trace) <= 2 * DATASET_LARGEST


def test_a_job_too_short_for_the_ratio_has_one_output_token_and_its_prompt() -> None:
    assert split_by_ratio(10, 256.0) == (256, 1)
    assert split_by_ratio(1, 0.25) == (1, 1)
    assert split_by_ratio(100, 0.25) == (20, 80)


@pytest.mark.parametrize("kind", list(WorkloadKind))
def test_every_kind_is_the_same_for_a_seed_and_another_for_another(kind: WorkloadKind) -> None:
    workload = replace(MANY, jobs=40, kind=kind)
    assert make_trace(workload) == make_trace(workload)
    assert make_trace(workload) != make_trace(replace(workload, seed=8))
    assert [job.prompt_tokens for job in make_trace(workload)] == [
        job.prompt_tokens for job in make_trace(replace(workload, rate=2.0, cv=4.0))
    ]
