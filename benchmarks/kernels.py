"""The compiled decoder against torch's operators, and both against what the machine could do at most.

Two engines without services, one of each kind, take turns in one sitting, because the memory bandwidth of shared
machines drifts by the minute; medians are compared. The bounds are those of roofline.py.
"""

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.engines import EngineProcess, engine
from benchmarks.goals_and_tables import Goal, Table, at_least
from benchmarks.model_folders import random_model
from benchmarks.roofline import bounds
from benchmarks.settings import BenchSettings
from benchmarks.single_stream import DECODE_TOKENS, PREFILL_TOKENS, QUICK_DECODE_TOKENS, by_engine, medians_by_side
from benchmarks.throughput import DEVICE_TOKENS, first_jobs

KERNELS = ("native", "torch")
TRACE_JOBS, QUICK_JOBS = 24, 12
WARM_UP_JOBS = 8
LEAST_RATIO = 1.0
FIGURES = ("decode_tokens_per_s", "prefill_tokens_per_s", "offline_tokens_per_s")


async def _figures(one: EngineProcess, trace: Path, decode_tokens: int) -> dict[str, float]:
    alone = await by_engine(one, decode_tokens)
    offline = await one.ask("trace", file=str(trace))
    return {**alone, "offline_tokens_per_s": offline["output_tokens_per_s"]}


async def _measure_model(settings: BenchSettings, preset: str) -> dict[str, Any]:
    folder = random_model(preset)
    decode_tokens = settings.pick(DECODE_TOKENS, QUICK_DECODE_TOKENS)
    trace = first_jobs(settings, settings.pick(TRACE_JOBS, QUICK_JOBS))
    pool = ["--kv-device-tokens", str(DEVICE_TOKENS)]
    runs: list[dict[str, dict[str, float]]] = []
    async with (
        engine(settings, folder, *pool, "--kernels", "native") as native,
        engine(settings, folder, *pool, "--kernels", "torch") as torch,
    ):
        both = dict(zip(KERNELS, (native, torch), strict=True))
        for one in both.values():
            await _figures(one, first_jobs(settings, WARM_UP_JOBS), WARM_UP_JOBS)
        for _ in range(settings.pick(2, 1)):
            runs.append({name: await _figures(one, trace, decode_tokens) for name, one in both.items()})
        rates = await torch.ask("rates")
    medians = medians_by_side(runs)
    ratios = {figure: round(medians["native"][figure] / medians["torch"][figure], 3) for figure in FIGURES}
    return {**medians, "ratios": ratios, "rates": rates, "bounds": bounds(folder, rates), "runs": runs}


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    models = settings.pick(("S", "M"), ("S",))
    return {
        "dtype": "bfloat16",
        "max_batch": settings.max_batch,
        "prefill_tokens": PREFILL_TOKENS,
        "models": {preset: await _measure_model(settings, preset) for preset in models},
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Both kinds of kernels on both models, in turn; medians."""
    return asyncio.run(_measure(settings))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The compiled decoder is nowhere slower."""
    return [
        at_least(f"{preset}: {figure.removesuffix('_tokens_per_s')}, native / torch", ratio, LEAST_RATIO)
        for preset, figures in measured["models"].items()
        for figure, ratio in figures["ratios"].items()
    ]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    heading = ("model", "figure", "native", "torch", "native / torch", "bound", "native / bound")
    rows = []
    for preset, figures in measured["models"].items():
        for figure in FIGURES:
            native, bound = figures["native"][figure], figures["bounds"].get(figure)
            rows.append(
                (
                    preset,
                    figure.removesuffix("_tokens_per_s"),
                    f"{native:.0f}",
                    f"{figures['torch'][figure]:.0f}",
                    f"{figures['ratios'][figure]:.2f}",
                    "-" if bound is None else f"{bound:.0f}",
                    "-" if bound is None else f"{native / bound:.0%}",
                )
            )
    rates = [figures["rates"] for figures in measured["models"].values()]
    note = (
        "The bound of a decode is the weights' bytes over the measured speed of reading "
        f"({max(rate['read_bytes_per_s'] for rate in rates) / 1e9:.0f} GB/s), that of a prefill its operations over "
        f"the measured speed of torch's products ({max(rate['product_flop_per_s'] for rate in rates) / 1e9:.0f} "
        "GFLOP/s)."
    )
    title = (
        f"Engine alone, {measured['dtype']}: one stream's decode, prefill of {measured['prefill_tokens']}, and "
        f"{TRACE_JOBS} jobs at once at batch {measured['max_batch']}: tokens/s"
    )
    return [Table(title, heading, rows, note)]
