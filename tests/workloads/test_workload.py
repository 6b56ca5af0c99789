"""Workloads: the moments of what is generated, and the traces that are read."""

import math
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from services.domain.errors import InvalidFieldError
from services.workloads.lengths import ZipfLengths
from services.workloads.workload import (
    MOST_TOKENS,
    TraceJob,
    Workload,
    WorkloadKind,
    make_trace,
    random_token_ids,
    read_trace,
    scale_arrivals,
    trace_line,
    wrong_with,
)

MANY = Workload(jobs=40_000, rate=8.0, cv=4.0, theta=1.3, max_prompt_tokens=512, max_output_tokens=256, seed=7)


def gaps_of(trace: list[TraceJob]) -> list[float]:
    return [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(trace)]


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_gaps_between_arrivals_have_the_mean_of_the_rate_and_the_asked_variation(cv: float) -> None:
    gaps = gaps_of(make_trace(Workload(40_000, 8.0, cv, 1.3, 512, 256, seed=7)))
    assert fmean(gaps) == pytest.approx(1 / 8.0, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


@pytest.mark.parametrize("rate", [1e-9, 1e9])
@pytest.mark.parametrize("cv", [0.0, 1e-3, 1e3])
@pytest.mark.parametrize("ratio", [1e-6, 1e6])
@pytest.mark.parametrize("theta", [0.0, 1e3])
def test_a_workload_at_the_limits_is_finite(rate: float, cv: float, ratio: float, theta: float) -> None:
    for name, value in (("rate", rate), ("cv", cv), ("ratio", ratio), ("theta", theta)):
        assert wrong_with(name, value) is None
    trace = make_trace(Workload(50, rate, cv, theta, 512, 256, seed=7, kind=WorkloadKind.RATIO, ratio=ratio))
    assert read_trace(map(trace_line, trace)), "is read as it was written"


@pytest.mark.parametrize(
    ("name", "value"),
    [("rate", 0.0), ("rate", 1e-320), ("cv", 1e-200), ("cv", 1e200), ("theta", 1e4), ("ratio", 0.0), ("ratio", 1e300)],
)
def test_beyond_the_limits_it_is_told_what_is_wrong(name: str, value: float) -> None:
    assert (wrong_with(name, value) or "").startswith("must be ")


def test_arrivals_without_variation_are_a_metronome() -> None:
    assert gaps_of(make_trace(Workload(5, 4.0, 0.0, 1.0, 8, 8, seed=1))) == pytest.approx([0.25] * 4)


def test_lengths_follow_the_bounded_zipf_distribution() -> None:
    lengths = [job.output_tokens for job in make_trace(MANY)]
    weights = [k**-1.3 for k in range(1, 257)]
    assert min(lengths) == 1
    assert max(lengths) == 256
    for k in (1, 2, 5, 20):
        assert lengths.count(k) / len(lengths) == pytest.approx(weights[k - 1] / sum(weights), rel=0.15)
    assert fmean(lengths) == pytest.approx(ZipfLengths(1.3, 256).mean, rel=0.05)


def test_zipf_of_theta_0_is_uniform() -> None:
    zipf = ZipfLengths(0.0, 4)
    assert [zipf.quantile(u) for u in (0.0, 0.26, 0.51, 0.99, 1.0)] == [1, 2, 3, 4, 4]
    assert zipf.mean == 2.5


def test_the_same_workload_gives_the_same_trace_and_another_seed_another() -> None:
    small = Workload(50, 8.0, 4.0, 1.3, 512, 256, seed=7)
    other = Workload(50, 8.0, 4.0, 1.3, 512, 256, seed=8)
    assert make_trace(small) == make_trace(small)
    assert make_trace(small) != make_trace(other)


def test_the_rate_changes_no_length() -> None:
    slow, fast = (make_trace(Workload(50, rate, 4.0, 1.3, 512, 256, seed=7)) for rate in (1.0, 9.0))
    assert [(job.prompt_tokens, job.output_tokens) for job in slow] == [
        (job.prompt_tokens, job.output_tokens) for job in fast
    ]


def test_stratified_lengths_have_nearly_the_same_sum_for_every_seed_and_size() -> None:
    def mean_output(jobs: int, seed: int) -> float:
        trace = make_trace(Workload(jobs, 8.0, 4.0, 1.3, 512, 768, seed), stratified=True)
        return fmean(job.output_tokens for job in trace)

    exact = ZipfLengths(1.3, 768).mean
    assert [mean_output(jobs, seed) for jobs in (300, 1000) for seed in (1, 2, 3)] == pytest.approx(
        [exact] * 6, rel=0.02
    )


def test_scaled_arrivals_keep_their_pattern_and_meet_the_rate() -> None:
    trace = make_trace(Workload(100, 3.0, 4.0, 1.3, 64, 64, seed=3))
    scaled = scale_arrivals(trace, 10.0)
    assert scaled[0].arrival_s == 0
    assert scaled[-1].arrival_s == pytest.approx(9.9)
    factor = scaled[-1].arrival_s / trace[-1].arrival_s
    assert gaps_of(scaled) == pytest.approx([gap * factor for gap in gaps_of(trace)])


def test_random_prompts_are_seeded_and_keep_off_both_ends_of_the_vocabulary() -> None:
    ids = random_token_ids(500, 4096, "0/1")
    assert ids == random_token_ids(500, 4096, "0/1")
    assert ids != random_token_ids(500, 4096, "0/2")
    assert 512 <= min(ids) <= max(ids) < 3584


def test_a_trace_is_read_in_order_of_arrival_with_all_kinds_of_prompts() -> None:
    lines = [
        '{"arrival_s": 2, "prompt_tokens": 3, "output_tokens": 4}',
        "",
        '{"arrival_s": 1.5, "output_tokens": 1, "prompt_token_ids": [5, 6], "id": "a"}',
        '{"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 2, "prompt": "once", "client": "bob"}',
    ]
    jobs = read_trace(lines)
    assert jobs == [
        TraceJob("3", 0.0, 9, 2, prompt="once", client="bob"),
        TraceJob("a", 1.5, 2, 1, prompt_token_ids=(5, 6)),
        TraceJob("0", 2.0, 3, 4),
    ]
    assert read_trace(trace_line(job) for job in jobs) == jobs


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"arrival_s": 0, "prompt_tokens": 3}',
        '{"arrival_s": -1, "prompt_tokens": 3, "output_tokens": 1}',
        '{"arrival_s": NaN, "prompt_tokens": 3, "output_tokens": 1}',
        '{"arrival_s": 0, "prompt_tokens": 0, "output_tokens": 1}',
        '{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": "many"}',
        '{"arrival_s": 0, "prompt_token_ids": 3, "output_tokens": 1}',
        '{"arrival_s": 0, "prompt_tokens": 1e999, "output_tokens": 1}',
        '{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": Infinity}',
        f'{{"arrival_s": 1{"0" * 400}, "prompt_tokens": 3, "output_tokens": 1}}',
        f'{{"arrival_s": 0, "prompt_tokens": {MOST_TOKENS + 1}, "output_tokens": 1}}',
        '{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1, "client": 4711}',
        f'{{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1, "client": "{"x" * 65}"}}',
        "[" * 100_000,
    ],
)
def test_a_bad_line_of_a_trace_is_named(line: str) -> None:
    good = '{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1}'
    with pytest.raises(InvalidFieldError, match="trace line 2"):
        read_trace([good, line])


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="no jobs"):
        read_trace([])


def test_a_gamma_distribution_of_cv_1_is_exponential() -> None:
    gaps = gaps_of(make_trace(Workload(40_000, 2.0, 1.0, 1.0, 4, 4, seed=5)))
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.01)
