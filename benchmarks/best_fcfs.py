"""Live: the default policy and the paper's against FCFS in its best form, on one bursty trace, repeated.

FCFS has three forms (services.simulator.fcfs_capacity). All of them run, and the one with the shortest mean job
completion time on this trace is what the others are compared with. The trace's load is relative to what the best form
sustains on this machine, measured first. One server runs at a time, new for each run and with a short warm-up. The
systems take turns, and all of it is done PASSES times, so that the spread shows how much this machine differs from
itself: a difference inside it is none.

The model is the random one of 30M parameters: its iterations take some milliseconds, as those of a large model on a
GPU do. With the bundled one, whose iterations take less than one, the messages of the services would be measured. It
has one thread unless `--threads` says otherwise; the other services and the client have the other core.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, seconds
from benchmarks.model_folders import random_model
from benchmarks.saturated_fcfs import CalibratedTrace, calibrated_trace
from benchmarks.servers import Result, bench, demand_no_failures, trace_server
from benchmarks.settings import BenchSettings
from services.simulator.fcfs_capacity import FCFS_FORMS
from services.workloads.calibration import Need
from services.workloads.repeated_runs import Spread, soonest, spread, spread_of
from services.workloads.workload import Workload

PASSES = 5
FCFS = tuple(("fcfs", form) for form in FCFS_FORMS)
OURS = ("gittins", "proactive")
PAIRS = (*FCFS, ("skip-join-mlfq", "proactive"), OURS)
MODEL = "S"
THREADS = 1

LOAD = 0.9
DEVICE_TOKENS = 3072
HOST_TOKENS = 131_072
SHAPE = Workload(jobs=300, rate=1.0, cv=4.0, theta=1.35, max_prompt_tokens=512, max_output_tokens=768, seed=1)

LEAST_GAIN = 1.7
FIGURES = (
    ("mean JCT", "jct_s", "mean"),
    ("P50", "jct_s", "p50"),
    ("P95", "jct_s", "p95"),
    ("P99", "jct_s", "p99"),
    ("mean TTFT", "ttft_s", "mean"),
    ("P99 TTFT", "ttft_s", "p99"),
    ("mean worst gap", "worst_gap_s", "mean"),
    ("P99 worst gap", "worst_gap_s", "p99"),
)
"""Text, distribution, statistic."""
_DISTRIBUTIONS = ("jct_s", "ttft_s", "per_output_token_s", "inter_token_s", "worst_gap_s")

Run = dict[str, Any]


def _name(policy: str, kv_policy: str) -> str:
    return f"{policy} + {kv_policy}"


def _flags(policy: str, kv_policy: str) -> list[str]:
    pools = ["--kv-device-tokens", str(DEVICE_TOKENS), "--kv-host-tokens", str(HOST_TOKENS)]
    return ["--model", str(random_model(MODEL)), "--policy", policy, "--kv-policy", kv_policy, *pools]


async def _run(settings: BenchSettings, trace: CalibratedTrace, pair: tuple[str, str], number: int) -> Run:
    """One run of the trace on a new server. Prompts differ from pass to pass."""
    name = f"best-fcfs-{'-'.join(pair)}-{number + 1}"
    out = settings.folder("raw", name)
    async with trace_server(settings, name, _flags(*pair), trace.warm_up) as ready:
        result = await bench(ready, trace.file, out, "--seed", str(number))
    demand_no_failures(result, out)
    return {
        "policy": pair[0],
        "kv_policy": pair[1],
        "pass": number + 1,
        **{name: result[name] for name in ("jobs", "duration_s", "output_tokens_per_s", *_DISTRIBUTIONS)},
        "scheduler": result["scheduler"],
        "kv": result["kv"],
    }


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    need = Need(LOAD, settings.pick(400, 50), settings.pick(34.0, 5.0), DEVICE_TOKENS, settings.pick(4.0, 1.0))
    trace = await calibrated_trace(settings, "best-fcfs", SHAPE, need, _flags)
    passes = settings.pick(PASSES, 2)
    runs = [await _run(settings, trace, pair, number) for number in range(passes) for pair in PAIRS]
    return {
        "model": MODEL,
        "threads": settings.threads,
        "load": LOAD,
        **trace.told(),
        "theta": SHAPE.theta,
        "device_tokens": DEVICE_TOKENS,
        "host_tokens": HOST_TOKENS,
        "passes": passes,
        "runs": runs,
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Every system's runs of the trace, in turn."""
    return asyncio.run(_measure(replace(settings, threads=settings.threads or THREADS)))


def by_system(measured: dict[str, Any]) -> dict[str, list[Result]]:
    """The runs of each system, in the order of the passes: FCFS in its best form first, then as in PAIRS."""
    of = {
        _name(*pair): [run for run in measured["runs"] if (run["policy"], run["kv_policy"]) == pair] for pair in PAIRS
    }
    best = soonest({_name(*pair): of[_name(*pair)] for pair in FCFS})
    return {best: of[best], **of}


def _known_spread(results: Sequence[Result], field: str, statistic: str) -> Spread:
    measured = spread_of(results, field, statistic)
    assert measured is not None, "no job failed"
    return measured


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The default policy against FCFS in its best form: the mean, and the tail."""
    systems = by_system(measured)
    before, after = systems[next(iter(systems))], systems[_name(*OURS)]
    mean, tail = (
        _known_spread(after, "jct_s", one).times_less_than(_known_spread(before, "jct_s", one))
        for one in ("mean", "p99")
    )
    best = next(iter(systems))
    return [
        Goal(
            f"mean JCT of {_name(*OURS)}, times sooner than {best}",
            f">= {LEAST_GAIN}",
            _factor(mean),
            (mean or 1.0) >= LEAST_GAIN,
        ),
        Goal(f"P99 JCT of {_name(*OURS)}, against {best}", "no later", _factor(tail), tail is None or tail > 1),
    ]


def _factor(factor: float | None) -> str:
    return "no difference" if factor is None else f"{factor:.2f}"


def _paired(before: Sequence[Result], after: Sequence[Result], field: str, statistic: str) -> str:
    """How much sooner in each pass, whose runs met the machine at a like pace; `-` if a figure is 0."""
    pairs = [(was[field][statistic], now[field][statistic]) for was, now in zip(before, after, strict=True)]
    if any(now == 0 for _, now in pairs):
        return "-"
    factors = spread([was / now for was, now in pairs])
    return f"{factors.median:.2f} ({factors.least:.2f}-{factors.greatest:.2f})"


def _shown(measured: Spread) -> str:
    return f"{seconds(measured.median)} ({seconds(measured.least)}-{seconds(measured.greatest)})"


def _cost_row(name: str, results: Sequence[Result]) -> tuple[str, ...]:
    def shown(section: str, field: str, form: str, unit: float = 1.0) -> str:
        return f"{spread([result[section][field] / unit for result in results]).median:{form}}"

    return (
        name,
        f"{spread([result['output_tokens_per_s'] for result in results]).median:.0f}",
        shown("scheduler", "preemptions", ".0f"),
        shown("kv", "recomputed_tokens", ".0f"),
        shown("kv", "offloaded_bytes", ".0f", 1e6),
        shown("kv", "uploaded_bytes", ".0f", 1e6),
        shown("kv", "stall_s", ".2f"),
    )


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    systems = by_system(measured)
    best, *others = systems
    rates = ", ".join(f"{rate:.1f} ({form})" for form, rate in measured["sustained_by_form_jobs_per_s"].items())
    note = (
        f"Model {measured['model']} on {measured['threads']} thread(s). FCFS sustains {rates} jobs/s. "
        f"{measured['jobs']} jobs in {measured['span_s']:.0f} s, {measured['load']:.0%} of the best of that, "
        f"CV {measured['cv']}, Zipf {measured['theta']}; a device pool of {measured['device_tokens']} tokens, of the "
        f"{measured['peak_need_tokens']} that all jobs together would need at the peak. The median of "
        f"{measured['passes']} runs, with the least and the greatest."
    )
    heading = ("system", *(text for text, _, _ in FIGURES))
    spreads = {
        name: [_known_spread(results, field, statistic) for _, field, statistic in FIGURES]
        for name, results in systems.items()
    }
    factors = [
        (name, *(_factor(now.times_less_than(was)) for was, now in zip(spreads[best], spreads[name], strict=True)))
        for name in others
    ]
    paired = [
        (name, *(_paired(systems[best], systems[name], field, statistic) for _, field, statistic in FIGURES))
        for name in others
    ]
    cost = ("system", "tokens/s", "preemptions", "recomputed", "MB offloaded", "MB uploaded", "stall, s")
    return [
        Table(
            "Against FCFS in its best form, seconds",
            heading,
            [(name, *(_shown(one) for one in of)) for name, of in spreads.items()],
            note,
        ),
        Table(f"Times sooner than {best}", heading, factors, "A difference inside the spread of the runs is none."),
        Table(
            f"Times sooner than {best} within a pass",
            heading,
            paired,
            "Systems take turns, so those of a pass meet the machine at a pace that is more alike than in all passes "
            "together. The median of the passes, with the least and the greatest; no goal.",
        ),
        Table(
            "What it took against FCFS in its best form",
            cost,
            [_cost_row(name, results) for name, results in systems.items()],
        ),
    ]
