"""From a saturated run to a trace of a known load. Pure.

What FCFS sustains is measured, not modelled: all jobs of a short workload at once, counted up to the moment at which
the last of them has started, because from then on batches are no longer full. The lengths of that workload and of the
trace are stratified draws from the same distributions, so that work per job is the same in both.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, pstdev

from services.workloads.job_records import JobRecord
from services.workloads.workload import TraceJob, Workload, make_trace, scale_arrivals

MOST_JOBS = 5000
MOST_SEEDS = 200


@dataclass(frozen=True, slots=True)
class Need:
    """Requirements on a demo's trace: load relative to what FCFS sustains, minimum jobs and seconds, and the peak need
    as a multiple of the pool. The number of jobs is a multiple of `jobs_step`: with a large one, machines that sustain
    more or less run the same jobs in the same bursts, only sooner or later.
    """

    load: float
    least_jobs: int
    least_s: float
    pool_tokens: int
    pools_in_peak: float
    cv_tolerance: float = 0.15
    jobs_step: int = 1


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A trace, its rate in jobs per second, its peak need in tokens of KV, and the actual CV of its arrivals."""

    jobs: list[TraceJob]
    workload: Workload
    rate: float
    peak_need_tokens: int
    cv: float


def sustained_rate(records: Sequence[JobRecord]) -> float:
    """Jobs per second that a saturated server completes; `records` are those of a trace run of everything at once.

    Work is counted in output tokens: jobs per second = (share of all output tokens made until the last job started) x
    jobs / (seconds until then).
    """
    good = [record for record in records if record.error is None and record.first_token_s is not None]
    assert good, "calibration needs a job that ended well"
    saturated_s = max(record.first_token_s or 0.0 for record in good)
    made = sum(_tokens_until(record, saturated_s) for record in good)
    return made / sum(record.output_tokens for record in good) * len(good) / saturated_s


def _tokens_until(record: JobRecord, limit_s: float) -> int:
    time_s, tokens = record.first_token_s or 0.0, 0
    for gap_s in (0.0, *record.gaps_s):
        time_s += gap_s
        if time_s > limit_s:
            break
        tokens += 1
    return tokens


def peak_need_tokens(stays: Iterable[tuple[float, float, int]]) -> int:
    """Most KV tokens held at a time if every job holds all of its own from its arrival to its end.

    `stays` are (arrival, end, tokens of prompt and output) of each job.
    """
    ends: list[tuple[float, int]] = []
    held = peak = 0
    for arrival_s, end_s, tokens in sorted(stays):
        while ends and ends[0][0] <= arrival_s:
            held -= heapq.heappop(ends)[1]
        heapq.heappush(ends, (end_s, tokens))
        held += tokens
        peak = max(peak, held)
    return peak


def fluid_stays(trace: Sequence[TraceJob], rate: float) -> list[tuple[float, float, int]]:
    """When jobs end if the server runs them one after the other in order of arrival, at its measured speed.

    `rate` is sustained_rate of the same lengths. A fluid stands in for batches: the backlog, which makes the peak need,
    is the same.
    """
    second_per_token = len(trace) / rate / sum(job.output_tokens for job in trace)
    free_s = 0.0
    stays = []
    for job in trace:
        free_s = max(free_s, job.arrival_s) + job.output_tokens * second_per_token
        stays.append((job.arrival_s, free_s, job.prompt_tokens + job.output_tokens))
    return stays


def variation(trace: Sequence[TraceJob]) -> float:
    """Coefficient of variation of the gaps between arrivals."""
    gaps = [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(trace)]
    return pstdev(gaps) / fmean(gaps)


def loaded_trace(workload: Workload, sustained: float, need: Need) -> LoadedTrace:
    """The trace of the first seed, from the workload's on, whose sample meets the need.

    Heavy tails make samples differ: a trace of a thousand gaps drawn with CV 4 may come out with CV 3, and its peak
    need with it. If no seed fits, the one with the greatest peak need is taken, as its `peak_need_tokens` shows.
    """
    rate = need.load * sustained
    steps = math.ceil(max(need.least_jobs, rate * need.least_s) / need.jobs_step)
    jobs = min(steps * need.jobs_step, MOST_JOBS)
    best: LoadedTrace | None = None
    for seed in range(workload.seed, workload.seed + MOST_SEEDS):
        drawn = replace(workload, jobs=jobs, rate=rate, seed=seed)
        trace = scale_arrivals(make_trace(drawn, stratified=True), rate)
        made = LoadedTrace(trace, drawn, rate, peak_need_tokens(fluid_stays(trace, sustained)), variation(trace))
        if abs(made.cv / workload.cv - 1) > need.cv_tolerance:
            continue
        if made.peak_need_tokens >= need.pool_tokens * need.pools_in_peak:
            return made
        if best is None or made.peak_need_tokens > best.peak_need_tokens:
            best = made
    assert best is not None, "no seed gives arrivals of the requested variation"
    return best
