"""How fast the engine moves KV: offload and upload of jobs of 512 tokens, from the command to the last Done, against a
plain copy of the same bytes between the same two pools, in turn. GB/s are 10^9 bytes moved per second.
"""

import asyncio
from statistics import median
from typing import Any

from benchmarks.engines import EngineProcess, engine
from benchmarks.goals_and_tables import Table
from benchmarks.model_folders import random_model
from benchmarks.settings import BenchSettings

LAYOUTS = {"neighbouring blocks": False, "scattered blocks": True}
WAYS = ("plain_one_thread", "plain_all_threads", "offload", "upload")


async def _measure_layout(settings: BenchSettings, alone: EngineProcess, scattered: bool) -> dict[str, Any]:
    jobs = settings.pick(32, 8)
    await alone.ask("copy", jobs=jobs, scattered=scattered)  # touches the pools' memory
    repeats = settings.pick(15, 3)
    runs = [await alone.ask("copy", jobs=jobs, scattered=scattered) for _ in range(repeats)]
    moved = runs[0]["bytes"]
    return {
        "bytes": moved,
        "repeats": repeats,
        "gb_per_s": {way: round(moved / median(run[f"{way}_s"] for run in runs) / 1e9, 2) for way in WAYS},
    }


async def _measure_model(settings: BenchSettings, preset: str) -> dict[str, Any]:
    async with engine(settings, random_model(preset)) as alone:
        return {name: await _measure_layout(settings, alone, scattered) for name, scattered in LAYOUTS.items()}


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    models = settings.pick(("S", "M"), ("S",))
    return {"models": {preset: await _measure_model(settings, preset) for preset in models}}


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Both layouts on both models; medians."""
    return asyncio.run(_measure(settings))


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    heading = ("model, layout", "offload", "upload", "plain, one thread", "plain, all threads", "offload / plain")
    rows = []
    for preset, layouts in measured["models"].items():
        for layout, figures in layouts.items():
            speed = figures["gb_per_s"]
            cells = [f"{speed[way]:.1f}" for way in ("offload", "upload", "plain_one_thread", "plain_all_threads")]
            rows.append((f"{preset}, {layout}", *cells, f"{speed['offload'] / speed['plain_one_thread']:.2f}"))
    return [Table("Moving KV between the pools: GB/s", heading, rows)]
