"""From a saturated run to a trace of a known load."""

from array import array
from dataclasses import replace

import pytest

from services.workloads.calibration import Need, fluid_stays, loaded_trace, peak_need_tokens, sustained_rate, variation
from services.workloads.job_records import JobRecord
from services.workloads.workload import TraceJob, Workload

SHAPE = Workload(jobs=300, rate=1.0, cv=4.0, theta=1.35, max_prompt_tokens=512, max_output_tokens=768, seed=1)
NEED = Need(load=0.9, least_jobs=400, least_s=40.0, pool_tokens=3072, pools_in_peak=3.0)


def ended(first_token_s: float, gaps_s: list[float]) -> JobRecord:
    last_s = first_token_s + sum(gaps_s)
    return JobRecord("x", 0.0, 1, len(gaps_s) + 1, first_token_s, last_s, "length", gaps_s=array("d", gaps_s))


def test_the_sustained_rate_leaves_the_drain_out() -> None:
    # Two jobs of 4 tokens: when the second starts, at 2 s, the first has made all of its 4, and the second 1.
    records = [ended(0.5, [0.5, 0.5, 0.5]), ended(2.0, [10.0, 10.0, 10.0])]
    assert sustained_rate(records) == pytest.approx(5 / 8 * 2 / 2.0)


def test_failed_jobs_have_no_part_in_the_sustained_rate() -> None:
    failed = JobRecord("y", 0.0, 1, error="gone")
    assert sustained_rate([ended(1.0, []), failed]) == pytest.approx(1.0)


def test_the_peak_need_is_that_of_all_jobs_between_arrival_and_end() -> None:
    assert peak_need_tokens([(0.0, 4.0, 10), (1.0, 2.0, 5), (2.0, 3.0, 7), (5.0, 6.0, 12)]) == 17
    assert peak_need_tokens([]) == 0


def test_a_fluid_server_ends_jobs_in_order_of_arrival_at_its_rate() -> None:
    trace = [TraceJob("0", 0.0, 3, 2), TraceJob("1", 0.5, 3, 6), TraceJob("2", 10.0, 3, 4)]
    # 3 jobs of 12 tokens at 1 job/s: 4 tokens a second.
    assert fluid_stays(trace, 1.0) == [(0.0, 0.5, 5), (0.5, 2.0, 9), (10.0, 11.0, 7)]


@pytest.mark.parametrize("sustained", [3.0, 12.0, 45.0])
def test_a_demos_trace_has_the_load_the_length_the_bursts_and_the_need_asked_for(sustained: float) -> None:
    loaded = loaded_trace(SHAPE, sustained, NEED)
    seconds = loaded.jobs[-1].arrival_s
    assert len(loaded.jobs) >= 400
    assert seconds >= 30
    assert len(loaded.jobs) / seconds == pytest.approx(0.9 * sustained, rel=0.02)
    assert variation(loaded.jobs) == pytest.approx(4.0, rel=0.16)
    assert loaded.peak_need_tokens >= 3 * NEED.pool_tokens


def test_with_a_step_of_jobs_machines_run_the_same_trace_sooner_or_later() -> None:
    need = replace(NEED, jobs_step=400)
    slow, fast = (loaded_trace(SHAPE, sustained, need) for sustained in (4.0, 11.0))
    assert len(slow.jobs) == len(fast.jobs) == 400
    for one, other in zip(slow.jobs, fast.jobs, strict=True):
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
        assert one.arrival_s * 4 == pytest.approx(other.arrival_s * 11)
    assert len(loaded_trace(SHAPE, 12.0, need).jobs) == 800


def test_a_need_that_no_seed_meets_gets_the_greatest_there_is() -> None:
    loaded = loaded_trace(SHAPE, 5.0, Need(0.9, 400, 40.0, 10_000_000, 3.0))
    assert 0 < loaded.peak_need_tokens < 30_000_000
