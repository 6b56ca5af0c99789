"""Live job completion times of every scheduling policy, and of every KV policy, on one bursty trace.

The trace's rate is set from what FCFS in its best form sustains on this machine, measured first
(benchmarks.saturated_fcfs). Every policy gets the same trace, a server of its own with the bundled model, and a device
pool that holds at most a third of the trace's peak need. Scheduling policies run over the `proactive` KV policy, KV
policies under `skip-join-mlfq`.
"""

import asyncio
from typing import Any

from benchmarks.goals_and_tables import Table, seconds
from benchmarks.saturated_fcfs import calibrated_trace
from benchmarks.servers import Result, bench, server
from benchmarks.settings import BenchSettings
from services.workloads.calibration import Need
from services.workloads.workload import Workload

POLICIES = ("gittins", "skip-join-mlfq", "fcfs", "static", "mlfq", "mlfq-kill", "fixed-priority", "srpt")
KV_POLICIES = ("reactive", "recompute", "defer")
PAIRS = (*((policy, "proactive") for policy in POLICIES), *(("skip-join-mlfq", kv_policy) for kv_policy in KV_POLICIES))
QUICK_PAIRS = (
    ("gittins", "proactive"),
    ("skip-join-mlfq", "proactive"),
    ("fcfs", "proactive"),
    ("skip-join-mlfq", "recompute"),
)

LOAD = 0.85
DEVICE_TOKENS = 3072
HOST_TOKENS = 131_072
SHAPE = Workload(jobs=200, rate=1.0, cv=4.0, theta=1.35, max_prompt_tokens=512, max_output_tokens=768, seed=1)
JOB_LIMIT_S = 60.0
DISTRIBUTIONS = ("jct_s", "ttft_s", "per_output_token_s", "inter_token_s", "worst_gap_s")


def _flags(policy: str, kv_policy: str) -> list[str]:
    pools = ["--kv-device-tokens", str(DEVICE_TOKENS), "--kv-host-tokens", str(HOST_TOKENS)]
    return ["--policy", policy, "--kv-policy", kv_policy, *pools]


def _figures(result: Result, policy: str, kv_policy: str) -> dict[str, Any]:
    return {
        "policy": policy,
        "kv_policy": kv_policy,
        "jobs": result["jobs"],
        "failed": result["failed"],
        "duration_s": result["duration_s"],
        "output_tokens_per_s": result["output_tokens_per_s"],
        **{name: result[name] for name in DISTRIBUTIONS},
        "scheduler": result["scheduler"],
        "kv": result["kv"],
    }


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    least_s = settings.pick(30.0, 10.0)
    need = Need(LOAD, settings.pick(200, 50), least_s, DEVICE_TOKENS, settings.pick(3.0, 1.0))
    trace = await calibrated_trace(settings, "policies", SHAPE, need, _flags)
    runs = []
    for policy, kv_policy in settings.pick(PAIRS, QUICK_PAIRS):
        name = f"policies-{policy}-{kv_policy}"
        async with server(settings, name, _flags(policy, kv_policy)) as ready:
            await bench(ready, trace.warm_up, settings.folder("raw", f"{name}-warm-up"), "--time-scale", "0")
            out = settings.folder("raw", name)
            result = await bench(ready, trace.file, out, "--timeout", str(JOB_LIMIT_S))
        runs.append(_figures(result, policy, kv_policy))
    return {
        "model": "bundled",
        "load": LOAD,
        **trace.told(),
        "theta": SHAPE.theta,
        "device_tokens": DEVICE_TOKENS,
        "host_tokens": HOST_TOKENS,
        "job_limit_s": JOB_LIMIT_S,
        "runs": runs,
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """One trace run for each policy and each KV policy."""
    return asyncio.run(_measure(settings))


def _name(run: dict[str, Any]) -> str:
    return f"{run['policy']} + {run['kv_policy']}"


def _latency_table(runs: list[dict[str, Any]], field: str, title: str, note: str) -> Table:
    keys = ("mean", "p50", "p95", "p99")
    rows = [(_name(run), *(seconds(run[field][key]) for key in keys)) for run in runs]
    return Table(f"{title}, seconds", ("policy + KV policy", "mean", "P50", "P95", "P99"), rows, note)


def _cost_row(run: dict[str, Any]) -> tuple[str, ...]:
    scheduler, kv = run["scheduler"], run["kv"]
    moved_mb = (kv["offloaded_bytes"] + kv["uploaded_bytes"]) / 1e6
    counts = (run["failed"], scheduler["preemptions"], scheduler["promotions"], kv["recomputed_tokens"])
    speed = f"{run['output_tokens_per_s']:.0f}"
    return (_name(run), speed, *(str(count) for count in counts), f"{moved_mb:.0f}", f"{kv['stall_s']:.2f}")


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    runs = measured["runs"]
    note = (
        f"The bundled model; {measured['jobs']} jobs in {measured['span_s']:.0f} s, {measured['load']:.0%} of what "
        f"FCFS sustains, CV {measured['cv']}, Zipf {measured['theta']}; a device pool of {measured['device_tokens']} "
        f"tokens, of the {measured['peak_need_tokens']} that all jobs together would need at the peak."
    )
    cost = (
        "policy + KV policy",
        "tokens/s",
        "failed",
        "preemptions",
        "promotions",
        "recomputed",
        "MB moved",
        "stall, s",
    )
    return [
        _latency_table(runs, "jct_s", "Job completion", note),
        _latency_table(runs, "ttft_s", "First token", ""),
        _latency_table(runs, "per_output_token_s", "Per output token", ""),
        Table("What it took", cost, [_cost_row(run) for run in runs]),
    ]
