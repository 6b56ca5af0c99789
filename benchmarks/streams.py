"""A thousand streams through one gateway, all open at once: none may fail."""

import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_most, seconds
from benchmarks.servers import bench, records, resident_bytes, server, service_processes, write_trace
from benchmarks.settings import BenchSettings
from services.workloads.workload import TraceJob

STREAMS = 1000
QUICK_STREAMS = 200
PROMPT_TOKENS = 16
OUTPUT_TOKENS = 32


def most_jobs(status: Path) -> int:
    """The most jobs that the server had at a time, from a trace run's `status.jsonl`."""
    samples = [json.loads(line) for line in status.read_text(encoding="utf-8").splitlines()]
    return max(
        (group["running"] + group["waiting"] + group["swapped_out"] for one in samples for group in one["groups"]),
        default=0,
    )


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    streams = settings.pick(STREAMS, QUICK_STREAMS)
    jobs = [TraceJob(str(number), 0.0, PROMPT_TOKENS, OUTPUT_TOKENS) for number in range(streams)]
    trace = write_trace(settings.folder("traces") / "streams.jsonl", jobs)
    out = settings.folder("raw", "streams")
    async with server(settings, "streams", []) as ready:
        result = await bench(ready, trace, out, "--time-scale", "0")
        gateway_peak = resident_bytes(service_processes(ready)["gateway"])[1]
    errors = sorted({record["error"] for record in records(out) if record["error"] is not None})
    return {
        "streams": streams,
        "output_tokens": OUTPUT_TOKENS,
        "most_jobs_at_once": most_jobs(out / "status.jsonl"),
        "failed": result["failed"],
        "errors": errors[:10],
        "duration_s": result["duration_s"],
        "output_tokens_per_s": result["output_tokens_per_s"],
        "ttft_s": result["ttft_s"],
        "jct_s": result["jct_s"],
        "gateway_peak_mb": round(gateway_peak / 1e6, 1),
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """All streams of one client process against a whole server with the bundled model."""
    return asyncio.run(_measure(settings))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The goal is that none fails."""
    return [at_most(f"failed of {measured['streams']} streams through one gateway", measured["failed"], 0)]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    heading = ("streams", "failed", "most jobs at once", "tokens/s", "TTFT P99, s", "JCT P99, s", "gateway's peak, MB")
    row = (
        str(measured["streams"]),
        str(measured["failed"]),
        str(measured["most_jobs_at_once"]),
        f"{measured['output_tokens_per_s']:.0f}",
        seconds(measured["ttft_s"]["p99"]),
        seconds(measured["jct_s"]["p99"]),
        f"{measured['gateway_peak_mb']:.0f}",
    )
    return [Table(f"Streams of {measured['output_tokens']} tokens, all opened at once", heading, [row])]
