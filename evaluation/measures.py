"""What a figure can draw of a simulation: a number by name.

All times count from a job's arrival. `within_Nx` is the share of jobs whose first token came within N times the TTFT
limit and whose later tokens took no more than N times the per-token limit each on average (PAPER 5 names both
limits, not their values: these are ours). Gaps are the times between a job's consecutive tokens.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import fsum

from services.simulator.simulation import JobOutcome, Simulation
from services.workloads.job_records import percentile

TTFT_LIMIT_S = 1.0
PER_TOKEN_LIMIT_S = 0.1
LIMIT_SCALES = (0.5, 1.0, 2.0, 4.0)

_GB = 1e9
_STATISTICS = ("mean", "p50", "p95", "p99", "max")
_DISTRIBUTIONS = ("jct_s", "ttft_s", "per_output_token_s", "gap_s", "worst_gap_s")


def _distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    ascending = sorted(values) or [0.0]
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    numbers = {f"{name}.mean": fsum(ascending) / len(ascending)}
    return numbers | {f"{name}.{statistic}": percentile(ascending, share) for statistic, share in shares.items()}


def within_name(scale: float) -> str:
    """The number that tells the share of jobs within the limits times `scale`."""
    return f"within_{scale:g}x"


def _within(jct_ttft: Sequence[tuple[float, float]], scale: float) -> float:
    kept = sum(
        ttft_s <= TTFT_LIMIT_S * scale and per_token_s <= PER_TOKEN_LIMIT_S * scale for ttft_s, per_token_s in jct_ttft
    )
    return kept / len(jct_ttft) if jct_ttft else 0.0


def _latencies(good: Sequence[JobOutcome]) -> dict[str, float]:
    jct_s = [job.token_times_s[-1] - job.arrival_s for job in good]
    ttft_s = [job.token_times_s[0] - job.arrival_s for job in good]
    gaps_s = [[after - before for before, after in pairwise(job.token_times_s)] for job in good]
    per_token_s = [fsum(gaps) / len(gaps) if gaps else 0.0 for gaps in gaps_s]
    by_name = {
        "jct_s": jct_s,
        "ttft_s": ttft_s,
        "per_output_token_s": [jct / len(job.token_times_s) for jct, job in zip(jct_s, good, strict=True)],
        "gap_s": [gap for gaps in gaps_s for gap in gaps],
        "worst_gap_s": [max(gaps) for gaps in gaps_s if gaps],
    }
    numbers: dict[str, float] = {}
    for name in _DISTRIBUTIONS:
        numbers |= _distribution(name, by_name[name])
    pairs = list(zip(ttft_s, per_token_s, strict=True))
    return numbers | {within_name(scale): _within(pairs, scale) for scale in LIMIT_SCALES}


def _time_split(good: Sequence[JobOutcome], simulation: Simulation) -> dict[str, float]:
    """Mean seconds of a job: before its first iteration, in iterations, waiting in between. `upload_s` is the part of
    the latter in which its KV was brought back, `upload_share` the same of all completion times, `swap_share` the part
    of the server's time in which only a copy ran.
    """
    jobs = max(len(good), 1)
    jct_s = fsum(job.token_times_s[-1] - job.arrival_s for job in good)
    queue_s = fsum(job.queue_s for job in good)
    executing_s = fsum(job.executing_s for job in good)
    upload_s = fsum(job.uploading_s for job in good)
    return {
        "queue_s": queue_s / jobs,
        "executing_s": executing_s / jobs,
        "preempted_s": max(jct_s - queue_s - executing_s, 0.0) / jobs,
        "upload_s": upload_s / jobs,
        "queue_share": queue_s / jct_s if jct_s > 0 else 0.0,
        "upload_share": upload_s / jct_s if jct_s > 0 else 0.0,
        "swap_share": simulation.swap_exposed_s / simulation.duration_s if simulation.duration_s > 0 else 0.0,
    }


def measure(simulation: Simulation, kv_bytes_per_token: int) -> dict[str, float]:
    """Every number of a run."""
    good = [job for job in simulation.outcomes if job.error is None]
    counters = simulation.counters
    output_tokens = sum(len(job.token_times_s) for job in good)
    return {
        "jobs": len(simulation.outcomes),
        "failed": len(simulation.outcomes) - len(good),
        **_latencies(good),
        **_time_split(good, simulation),
        "duration_s": simulation.duration_s,
        "busy_s": counters.busy_s,
        "plan_wait_s": counters.plan_wait_s,
        "stall_s": counters.stall_s,
        "swap_s": simulation.swap_s,
        "swap_exposed_s": simulation.swap_exposed_s,
        "output_tokens_per_s": output_tokens / simulation.duration_s if simulation.duration_s > 0 else 0.0,
        "iterations": counters.iterations,
        "preemptions": counters.preemptions,
        "promotions": counters.promotions,
        "demotions": counters.demotions,
        "offloaded_gb": counters.offloaded_bytes / _GB,
        "uploaded_gb": counters.uploaded_bytes / _GB,
        "recomputed_tokens": counters.recomputed_tokens,
        "peak_kv_gb": simulation.peak_kv_tokens * kv_bytes_per_token / _GB,
        "peak_device_kv_gb": simulation.peak_device_kv_tokens * kv_bytes_per_token / _GB,
    }


NUMBERS = (
    "jobs",
    "failed",
    *(f"{name}.{statistic}" for name in _DISTRIBUTIONS for statistic in _STATISTICS),
    *(within_name(scale) for scale in LIMIT_SCALES),
    *("queue_s", "executing_s", "preempted_s", "upload_s", "queue_share", "upload_share", "swap_share"),
    *("duration_s", "busy_s", "plan_wait_s", "stall_s", "swap_s", "swap_exposed_s", "output_tokens_per_s"),
    *("iterations", "preemptions", "promotions", "demotions"),
    *("offloaded_gb", "uploaded_gb", "recomputed_tokens", "peak_kv_gb", "peak_device_kv_gb"),
)
"""The names of all numbers, in the order of a CSV's columns; `measure` gives exactly these."""
