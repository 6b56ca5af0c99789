"""What sampling costs: choosing the tokens of a batch of 16 rows, by torch and by the compiled code in turn; and output
tokens per second on the trace zipf120, all jobs at once, when the jobs take the likeliest tokens and when they draw.

The rows' logits are normal with a deviation of 3, so that some hundred tokens make nine tenths of the probability. The
compiled code is timed on one thread, as it chooses beside rows that need torch; in its own iterations the threads
share the rows.
"""

import asyncio
import time
from statistics import median
from typing import Any

from benchmarks.goals_and_tables import Table
from benchmarks.model_folders import random_model
from benchmarks.servers import bench, demand_no_failures, trace_server
from benchmarks.settings import BenchSettings
from benchmarks.throughput import DEVICE_TOKENS, QUICK_JOBS, TRACE, WARM_UP_JOBS, first_jobs

ROWS = 16
VOCABULARIES = (32_000, 128_000)
STEPS, QUICK_STEPS = 40, 5
PRESET = "S"
TEMPERATURES = {"likeliest": "0", "drawn": "1"}
FIELDS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50 and top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
}


def _choosing(steps: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds by vocabulary, field and code: medians of the steps."""
    from services.worker.engine.compute_environment import set_compute_environment, usable_cores

    set_compute_environment()
    import torch

    from services.domain.job_sampling import JobSampling
    from services.worker.kernels.cpu.decoder_library import best_instruction_set
    from services.worker.kernels.cpu.native_draws import native_draw
    from services.worker.sampling.sampler import JobSampler, SampleRow, draw, sample

    torch.set_num_threads(usable_cores())
    instruction_set = best_instruction_set()
    assert instruction_set is not None, "the compiled code is what is measured"
    codes = {"torch": draw, "compiled": native_draw(instruction_set)}
    generator = torch.Generator().manual_seed(0)
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for vocabulary in VOCABULARIES:
        of_fields = measured[str(vocabulary)] = {}
        for name, fields in FIELDS.items():
            samplers = [JobSampler(JobSampling(max_tokens=steps, seed=row, **fields)) for row in range(ROWS)]
            times_ms: dict[str, list[float]] = {code: [] for code in codes}
            for step in range(steps):
                logits_SV = torch.randn(ROWS, vocabulary, generator=generator) * 3
                for code in sorted(codes, reverse=bool(step % 2)):
                    own_SV = logits_SV.clone()
                    began_s = time.perf_counter()
                    sample(own_SV, [SampleRow(sampler, step) for sampler in samplers], codes[code])
                    times_ms[code].append(1e3 * (time.perf_counter() - began_s))
            of_fields[name] = {code: median(times) for code, times in times_ms.items()}
    return measured


async def _through_services(settings: BenchSettings) -> dict[str, Any]:
    trace = first_jobs(settings, QUICK_JOBS) if settings.quick else TRACE
    flags = ["--model", str(random_model(PRESET)), "--kv-device-tokens", str(DEVICE_TOKENS)]
    rates: dict[str, list[float]] = {name: [] for name in TEMPERATURES}
    async with trace_server(settings, "sampling", flags, first_jobs(settings, WARM_UP_JOBS)) as server:
        for repeat in range(settings.pick(5, 1)):
            for name, temperature in TEMPERATURES.items():
                out = settings.folder("raw", f"sampling-{name}-{repeat}")
                result = await bench(server, trace, out, "--time-scale", "0", "--temperature", temperature)
                demand_no_failures(result, out)
                rates[name].append(result["output_tokens_per_s"])
    ratios = [drawn / likeliest for drawn, likeliest in zip(rates["drawn"], rates["likeliest"], strict=True)]
    return {"preset": PRESET, "tokens_per_s": rates, "drawn_to_likeliest": median(ratios)}


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Both."""
    choosing = _choosing(settings.pick(STEPS, QUICK_STEPS))
    return {"rows": ROWS, "choosing_ms": choosing, "services": asyncio.run(_through_services(settings))}


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    sizes = measured["choosing_ms"]
    columns = [(size, code) for size in sizes for code in ("torch", "compiled")]
    rows = [(name, *(f"{sizes[size][name][code]:.2f}" for size, code in columns)) for name in FIELDS]
    codes = [f"{code}, {int(size):,} tokens" for size, code in columns]
    services = measured["services"]
    rates = services["tokens_per_s"]
    note = (
        f"{measured['rows']} rows of logits; medians. Through the services, model {services['preset']}: "
        f"{median(rates['drawn']):.0f} tokens/s drawn, {median(rates['likeliest']):.0f} likeliest, "
        f"{services['drawn_to_likeliest']:.2f} times (median of {len(rates['drawn'])} pairs in turn)."
    )
    return [Table("Sampling: choosing the tokens of a batch, ms", ("jobs ask for", *codes), rows, note)]
