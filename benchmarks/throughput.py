"""Output tokens per second on the trace zipf120, all jobs at once: through all services, and by the engine alone.

The two take turns in one sitting, because the memory bandwidth of shared machines drifts by the minute; medians of the
repeats are compared. Each waits asleep while the other is measured. The engine alone runs jobs first come, first
served, with the same batch, token budget, threads and device pool.

The services are measured twice: with the default policy, which is what a user gets and what the goals are about, and
with the engine's own order. The default leaves the longest jobs for the end, where batches are smaller, so it makes
more iterations of the same tokens; what the services themselves cost is the share in the same order. Both are measured
at the papers' batch, and with the default policy at the batch that the server chooses if nobody says one, too.

Beside it stands the processor time that the services take of the same cores, by iteration. The client asks for the
server's status every 5 s only: four times a second, as `fastserve bench` does unless told otherwise, is work of
gateway and scheduler that no user asks for.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engines import engine
from benchmarks.goals_and_tables import Goal, Table, at_least, at_most
from benchmarks.model_folders import ROOT, random_model
from benchmarks.processor_time import SERVICES, beside_compute_ms, ms_by_iteration, processor_times
from benchmarks.servers import Result, bench, demand_no_failures, server, trace_server
from benchmarks.settings import BenchSettings
from services.loadgen.gateway_client import GatewayClient
from services.worker.engine.compute_thread import COMPUTE

TRACE = ROOT / "benchmarks" / "traces" / "zipf120.jsonl"
DEVICE_TOKENS = 32_768
POOL = ("--kv-device-tokens", str(DEVICE_TOKENS))
WARM_UP_JOBS = 8
QUICK_JOBS = 24
ALL_AT_ONCE = ("--time-scale", "0", "--sample-interval", "5")

LEAST_TOKENS_PER_S = {"S": 600.0, "M": 90.0}
LEAST_SHARE_OF_ENGINE = {"S": 0.92, "M": 0.99}
MOST_PLAN_WAIT_SHARE = 0.02

DEFAULT = "default"
SAME_ORDER = "same_order"
CHOSEN = "chosen_batch"
ORDERS = {DEFAULT: (), SAME_ORDER: ("--policy", "fcfs", "--kv-policy", "recompute")}
"""Flags of the server: its default, and the order in which the engine alone runs jobs."""


def plan_wait_share(result: Result) -> float:
    """Share of the worker's time in a trace run in which it had jobs and waited for a plan."""
    waited, busy = result["scheduler"]["plan_wait_s"], result["scheduler"]["busy_s"]
    total: float = waited + busy + result["kv"]["stall_s"]
    return waited / total if total > 0 else 0.0


def first_jobs(settings: BenchSettings, count: int) -> Path:
    """A trace of the first jobs of the trace."""
    lines = TRACE.read_text(encoding="utf-8").splitlines(keepends=True)
    path = settings.folder("traces") / f"zipf{count}.jsonl"
    path.write_text("".join(lines[:count]), encoding="utf-8")
    return path


def _services_figures(result: Result) -> dict[str, Any]:
    return {
        "output_tokens_per_s": result["output_tokens_per_s"],
        "duration_s": result["duration_s"],
        "plan_wait_share": round(plan_wait_share(result), 5),
        "busy_s": result["scheduler"]["busy_s"],
        "plan_wait_s": result["scheduler"]["plan_wait_s"],
        "stall_s": result["kv"]["stall_s"],
        "iterations": result["scheduler"]["iterations"],
        "preemptions": result["scheduler"]["preemptions"],
        "mean_jct_s": result["jct_s"]["mean"],
    }


def _median_ms(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(run[name] for run in runs) for name in runs[0]}


async def _measure_order(
    settings: BenchSettings, preset: str, order: str, trace: Path, warm_up: Path
) -> dict[str, Any]:
    """The services under the policy of one of ORDERS, and the engine alone, in turn."""
    model = random_model(preset)
    name = f"throughput-{preset}-{order}-{settings.max_batch}"
    runs: list[dict[str, Any]] = []
    async with (
        engine(settings, model, *POOL) as alone,
        trace_server(settings, name, ["--model", str(model), *POOL, *ORDERS[order]], warm_up) as served,
    ):
        await alone.ask("trace", file=str(warm_up))
        for repeat in range(settings.pick(3, 1)):
            out = settings.folder("raw", f"{name}-{repeat}")
            before = processor_times()
            result = await bench(served, trace, out, *ALL_AT_ONCE)
            demand_no_failures(result, out)
            taken_ms = ms_by_iteration(before, processor_times(), result["scheduler"]["iterations"])
            services_figures = {**_services_figures(result), "processor_ms_by_iteration": taken_ms}
            engine_figures = await alone.ask("trace", file=str(trace))
            runs.append({"services": services_figures, "engine": engine_figures})
        threads = alone.threads
    services = median(run["services"]["output_tokens_per_s"] for run in runs)
    by_engine = median(run["engine"]["output_tokens_per_s"] for run in runs)
    return {
        "max_batch": settings.max_batch,
        "services_tokens_per_s": round(services, 1),
        "engine_tokens_per_s": round(by_engine, 1),
        "share_of_engine": round(services / by_engine, 4),
        "plan_wait_share": median(run["services"]["plan_wait_share"] for run in runs),
        "processor_ms_by_iteration": _median_ms([run["services"]["processor_ms_by_iteration"] for run in runs]),
        "engine_threads": threads,
        "runs": runs,
    }


async def _chosen_batch(settings: BenchSettings, preset: str) -> int:
    """The most jobs of an iteration where no flag says it."""
    flags = ["--model", str(random_model(preset)), *POOL, "--max-batch", "off"]
    async with server(settings, f"throughput-{preset}-batch", flags) as ready, GatewayClient(ready.address) as client:
        (group,) = (await client.status()).groups
        return group.max_batch


async def _measure_model(settings: BenchSettings, preset: str, trace: Path, warm_up: Path) -> dict[str, Any]:
    figures = await _measure_order(settings, preset, DEFAULT, trace, warm_up)
    figures[SAME_ORDER] = await _measure_order(settings, preset, SAME_ORDER, trace, warm_up)
    batch = await _chosen_batch(settings, preset)
    if batch != settings.max_batch:
        at_chosen = replace(settings, max_batch=batch)
        figures[CHOSEN] = await _measure_order(at_chosen, preset, DEFAULT, trace, warm_up)
    return figures


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    trace = first_jobs(settings, QUICK_JOBS) if settings.quick else TRACE
    warm_up = first_jobs(settings, WARM_UP_JOBS)
    models = settings.pick(("S", "M"), ("S",))
    return {
        "trace": trace.name,
        "dtype": "bfloat16",
        "max_batch": settings.max_batch,
        "models": {preset: await _measure_model(settings, preset, trace, warm_up) for preset in models},
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Both sides on both models."""
    return asyncio.run(_measure(settings))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The goals of the services."""
    made = []
    for preset, figures in measured["models"].items():
        made += _goals_of(preset, preset, figures)
        if CHOSEN in figures:
            made += _goals_of(preset, f"{preset}, batch {figures[CHOSEN]['max_batch']}", figures[CHOSEN])
    return made


def _goals_of(preset: str, title: str, figures: dict[str, Any]) -> list[Goal]:
    least, least_share = LEAST_TOKENS_PER_S[preset], LEAST_SHARE_OF_ENGINE[preset]
    return [
        at_least(f"{title}: output tokens/s through the services", figures["services_tokens_per_s"], least),
        at_least(f"{title}: share of the engine's throughput", figures["share_of_engine"], least_share),
        at_most(f"{title}: share of time waiting for plans", figures["plan_wait_share"], MOST_PLAN_WAIT_SHARE),
    ]


def _rows(measured: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    """Model, batch and policy, and figures. Results of earlier versions say the batch once, and lack some of these."""
    for preset, figures in measured["models"].items():
        for part, policy in ((figures, DEFAULT), (figures.get(SAME_ORDER), "FCFS"), (figures.get(CHOSEN), DEFAULT)):
            if part is not None:
                yield (preset, str(part.get("max_batch", measured["max_batch"])), policy), part


def _iterations(figures: dict[str, Any], side: str) -> float:
    iterations: float = median(run[side]["iterations"] for run in figures["runs"])
    return iterations


def _throughput_table(measured: dict[str, Any]) -> Table:
    rows = [
        (
            *names,
            f"{figures['services_tokens_per_s']:.0f}",
            f"{figures['engine_tokens_per_s']:.0f}",
            f"{figures['share_of_engine']:.3f}",
            f"{_iterations(figures, 'services') / _iterations(figures, 'engine'):.3f}",
            f"{figures['plan_wait_share']:.2%}",
        )
        for names, figures in _rows(measured)
    ]
    title = f"{measured['trace']}, all jobs at once, {measured['dtype']}: output tokens/s"
    compared = ("services", "engine alone", "services / engine", "iterations, services / engine")
    note = "The engine alone runs first come, first served."
    return Table(title, ("model", "batch", "policy", *compared, "waiting for plans"), rows, note)


def _processor_table(measured: dict[str, Any]) -> Table:
    taken = [(names, figures["processor_ms_by_iteration"]) for names, figures in _rows(measured)]
    rows = [
        (*names, *(f"{ms[name]:.2f}" for name in SERVICES), f"{beside_compute_ms(ms):.2f}", f"{ms[COMPUTE]:.1f}")
        for names, ms in taken
    ]
    heading = ("model", "batch", "policy", *SERVICES, "together", "compute, all threads")
    note = "The worker's figure is its own loop. The client, which runs on the same cores, is not counted."
    return Table("Processor time by service in the same runs: ms an iteration", heading, rows, note)


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    return [_throughput_table(measured), _processor_table(measured)]
