"""int8 weights of the compiled decoder against bfloat16 ones: tokens per second, and what a text loses in likelihood.

Two engines without services, one of each kind, take turns in one sitting, as in kernels.py. A decode of few rows is
bound by reading weights, which int8 halves; many rows are bound by multiplying, which it leaves as it is. What
rounding costs in quality is measured on the bundled model and the text that was held out from its training, since
random weights have no quality to lose.
"""

import asyncio
import math
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from benchmarks.engines import EngineProcess, engine
from benchmarks.goals_and_tables import Goal, Table, at_least, at_most
from benchmarks.model_folders import ROOT, random_model
from benchmarks.settings import BenchSettings
from benchmarks.single_stream import (
    DECODE_TOKENS,
    PREFILL_TOKENS,
    QUICK_DECODE_TOKENS,
    engine_decode,
    engine_prefill,
    medians_by_side,
)
from benchmarks.throughput import DEVICE_TOKENS

BUNDLED = ROOT / "models" / "bundled"
STREAMS = (1, 4, 16)
FLAGS = {"float32": ("--dtype", "float32"), "bfloat16": (), "int8": ("--weights", "int8")}
COMPARED = ("bfloat16", "int8")
ROUNDS = 5
QUICK_ROWS = 2
LEAST_DECODE_RATIO = 1.4
MOST_LOST_PERCENT = 1.0


def _engine(settings: BenchSettings, folder: Path, kind: str) -> AbstractAsyncContextManager[EngineProcess]:
    flags = ("--kernels", "native", "--kv-device-tokens", str(DEVICE_TOKENS), *FLAGS[kind])
    return engine(settings, folder, *flags)


async def _figures(one: EngineProcess, streams: list[int], decode_tokens: int) -> dict[str, float]:
    decodes = {f"decode of {count}": await engine_decode(one, decode_tokens, count) for count in streams}
    return {**decodes, f"prefill of {PREFILL_TOKENS}": await engine_prefill(one)}


async def _measure_model(settings: BenchSettings, preset: str) -> dict[str, Any]:
    folder = random_model(preset)
    streams = [count for count in STREAMS if count <= settings.max_batch]
    runs: list[dict[str, dict[str, float]]] = []
    async with _engine(settings, folder, "bfloat16") as plain, _engine(settings, folder, "int8") as rounded:
        both = dict(zip(COMPARED, (plain, rounded), strict=True))
        for one in both.values():
            await _figures(one, streams, QUICK_DECODE_TOKENS)
        for _ in range(settings.pick(ROUNDS, 1)):
            tokens = settings.pick(DECODE_TOKENS, QUICK_DECODE_TOKENS)
            runs.append({kind: await _figures(one, streams, tokens) for kind, one in both.items()})
    medians = medians_by_side(runs)
    ratios = {name: round(medians["int8"][name] / figure, 3) for name, figure in medians["bfloat16"].items()}
    return {**medians, "ratios": ratios, "runs": runs}


async def _measure_perplexity(settings: BenchSettings) -> dict[str, float]:
    """Of the bundled model on held-out text, with each kind of weights, and what int8 loses, in percent."""
    found: dict[str, float] = {}
    for kind in FLAGS:
        async with _engine(settings, BUNDLED, kind) as one:
            told = await one.ask("held_out_loss", most_rows=settings.pick(None, QUICK_ROWS))
        found |= {kind: math.exp(told["loss"]), "tokens": told["tokens"]}
    lost = {f"lost_to_{kind}_percent": 100 * (found["int8"] / found[kind] - 1) for kind in ("bfloat16", "float32")}
    return {name: round(figure, 4) for name, figure in {**found, **lost}.items()}


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    models = settings.pick(("S", "M"), ("S",))
    return {
        "models": {preset: await _measure_model(settings, preset) for preset in models},
        "perplexity": await _measure_perplexity(settings),
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Both kinds of weights on both models, in turn, medians; then the perplexity."""
    return asyncio.run(_measure(settings))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """A decode of one stream of M gains, a text loses little."""
    ratios = {preset: figures["ratios"] for preset, figures in measured["models"].items()}
    gains = [
        at_least("M: decode of one stream, int8 / bfloat16", of_m["decode of 1"], LEAST_DECODE_RATIO)
        for preset, of_m in ratios.items()
        if preset == "M"
    ]
    losses = [
        at_most(
            f"bundled model: perplexity of int8 above that of {kind}",
            measured["perplexity"][f"lost_to_{kind}_percent"],
            MOST_LOST_PERCENT,
            " %",
        )
        for kind in ("bfloat16", "float32")
    ]
    return [*gains, *losses]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    rows = [
        (preset, name, f"{figures['int8'][name]:.0f}", f"{figures['bfloat16'][name]:.0f}", f"{ratio:.2f}")
        for preset, figures in measured["models"].items()
        for name, ratio in figures["ratios"].items()
    ]
    perplexity = measured["perplexity"]
    note = (
        f"Perplexity of the bundled model on {perplexity['tokens']:.0f} tokens of held-out text: "
        f"{perplexity['float32']:.3f} in float32, {perplexity['bfloat16']:.3f} in bfloat16, {perplexity['int8']:.3f} "
        "with int8 weights and the rest in bfloat16."
    )
    heading = ("model", "figure", "int8", "bfloat16", "int8 / bfloat16")
    return [Table("Engine alone, int8 weights: tokens/s of all streams", heading, rows, note)]
