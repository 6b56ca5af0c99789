"""One stream alone: decoded tokens per second, and prompt tokens per second of a prompt of 512, by the engine and
through the services. Through the services, a prefill lasts from the request to the first token at the client.
"""

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.engines import EngineProcess, engine
from benchmarks.goals_and_tables import Table
from benchmarks.model_folders import random_model
from benchmarks.servers import server
from benchmarks.settings import BenchError, BenchSettings
from services.domain.generation import GenerateRequest, SamplingRequest
from services.loadgen.gateway_client import GatewayClient, encode
from services.workloads.workload import random_token_ids

PREFILL_TOKENS = 512
DECODE_PROMPT_TOKENS = 16
DECODE_TOKENS = 128
QUICK_DECODE_TOKENS = 32
STREAM_LIMIT_S = 120.0


async def token_times_s(
    client: GatewayClient, vocabulary_size: int, prompt_tokens: int, output_tokens: int
) -> list[float]:
    """Seconds from the request to each of its output tokens."""
    prompt = random_token_ids(prompt_tokens, vocabulary_size, f"{prompt_tokens}/single")
    sampling = SamplingRequest(max_tokens=output_tokens, ignore_eos=True, temperature=0.0)
    request = encode(GenerateRequest(token_ids=prompt, sampling=sampling))
    times_s: list[float] = []
    began_s = time.perf_counter()
    async for progress in client.progress(request, STREAM_LIMIT_S):
        times_s += [time.perf_counter() - began_s] * progress.token_count
    if len(times_s) != output_tokens:
        raise BenchError(f"a stream of {output_tokens} tokens ended after {len(times_s)}")
    return times_s


async def _through_services(client: GatewayClient, vocabulary_size: int, decode_tokens: int) -> dict[str, float]:
    first = await token_times_s(client, vocabulary_size, PREFILL_TOKENS, 1)
    stream = await token_times_s(client, vocabulary_size, DECODE_PROMPT_TOKENS, decode_tokens + 1)
    return {
        "decode_tokens_per_s": decode_tokens / (stream[-1] - stream[0]),
        "prefill_tokens_per_s": PREFILL_TOKENS / first[0],
    }


async def engine_decode(alone: EngineProcess, decode_tokens: int, streams: int = 1) -> float:
    """Tokens per second of one stream, or of several together, by the engine alone."""
    told = await alone.ask(
        "single", prompt_tokens=DECODE_PROMPT_TOKENS, output_tokens=decode_tokens + 1, streams=streams
    )
    return streams * decode_tokens / float(told["decode_s"])


async def engine_prefill(alone: EngineProcess) -> float:
    """Prompt tokens per second by the engine alone."""
    told = await alone.ask("single", prompt_tokens=PREFILL_TOKENS, output_tokens=1)
    return PREFILL_TOKENS / float(told["prefill_s"])


async def by_engine(alone: EngineProcess, decode_tokens: int) -> dict[str, float]:
    """Both, as the results name them."""
    prefill = await engine_prefill(alone)
    return {"decode_tokens_per_s": await engine_decode(alone, decode_tokens), "prefill_tokens_per_s": prefill}


def medians_by_side(runs: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of runs that measure the same figures on all sides: the median of each figure on each side."""
    return {
        side: {name: round(median(run[side][name] for run in runs), 1) for name in figures}
        for side, figures in runs[0].items()
    }


async def _measure_model(settings: BenchSettings, preset: str) -> dict[str, Any]:
    model = random_model(preset)
    decode_tokens = settings.pick(DECODE_TOKENS, QUICK_DECODE_TOKENS)
    runs: list[dict[str, dict[str, float]]] = []
    async with (
        engine(settings, model) as alone,
        server(settings, f"single-{preset}", ["--model", str(model)]) as ready,
        GatewayClient(ready.address) as client,
    ):
        vocabulary_size = (await client.models())[0].vocabulary_size
        await by_engine(alone, 1)
        # Not so few tokens that they might all come at once.
        await _through_services(client, vocabulary_size, QUICK_DECODE_TOKENS)
        for _ in range(settings.pick(5, 2)):
            services = await _through_services(client, vocabulary_size, decode_tokens)
            runs.append({"services": services, "engine": await by_engine(alone, decode_tokens)})
    return {**medians_by_side(runs), "runs": runs}


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    models = settings.pick(("S", "M"), ("S",))
    return {
        "dtype": "bfloat16",
        "prefill_tokens": PREFILL_TOKENS,
        "decode_prompt_tokens": DECODE_PROMPT_TOKENS,
        "decode_tokens": settings.pick(DECODE_TOKENS, QUICK_DECODE_TOKENS),
        "models": {preset: await _measure_model(settings, preset) for preset in models},
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Both sides on both models, in turn; medians."""
    return asyncio.run(_measure(settings))


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    heading = ("model", "decode: services", "decode: engine", "prefill: services", "prefill: engine")
    rows = [
        (
            preset,
            *(
                f"{figures[side][f'{name}_tokens_per_s']:.0f}"
                for name in ("decode", "prefill")
                for side in ("services", "engine")
            ),
        )
        for preset, figures in measured["models"].items()
    ]
    return [Table(f"One stream, prompt of {measured['prefill_tokens']}, {measured['dtype']}: tokens/s", heading, rows)]
