"""What the spans of a request cost alone: the script span_program.py, several times, each in a process of its own that
sends to a receiver. `tracing` measures them in a server, where all that the machine does meanwhile is measured along.
Here differences of some microseconds show. In a server the caches are colder, so this is the least that they cost.
"""

import asyncio
import json
import os
import statistics
import sys
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least, at_most, tell
from benchmarks.model_folders import ROOT
from benchmarks.settings import BenchError, BenchSettings
from benchmarks.tracing import MOST_PERCENT, receiving

ROUNDS, QUICK_ROUNDS = 7, 2
SECONDS, QUICK_SECONDS = 40, 5
"""Of requests, each round."""
ROUND_LIMIT_S = 120.0
REQUESTS_A_SECOND = 50
LIGHT_MS = 15.0
"""CPU time of gateway, scheduler and KV manager a request, without traces, in `tracing` on two cores."""
SPANS_A_REQUEST = 7
STEPS = {
    "gateway_us": "recorded and made by the gateway",
    "scheduler_us": "recorded and made by the scheduler",
    "send_us": "encoded and sent by both",
}

Round = dict[str, float]


async def _round(seconds: int, address: str) -> Round:
    """Medians of the seconds of a process, but for the first, in which it connects."""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "1.0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.span_program", str(seconds + 1),
        cwd=ROOT, env={**os.environ, **variables}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        told, errors = await asyncio.wait_for(process.communicate(), ROUND_LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BenchError(f"span_program failed: {errors.decode('utf-8', 'replace').strip().splitlines()[-1]}")
    measured: list[Round] = json.loads(told)[1:]
    made = {step: statistics.median(one[step] for one in measured) for step in STEPS}
    return {**made, "all_us": sum(made.values())}


async def _measure(settings: BenchSettings) -> dict[str, Any]:
    rounds, seconds = settings.pick((ROUNDS, SECONDS), (QUICK_ROUNDS, QUICK_SECONDS))
    made = []
    async with receiving(settings.folder("logs") / "otlp-receiver.log") as receiver:
        for number in range(rounds):
            tell(f"spans: round {number + 1} of {rounds}")
            made.append(await _round(seconds, receiver.address))
        told = await receiver.told()
    requests = rounds * (seconds + 1) * REQUESTS_A_SECOND
    return {"seconds_a_round": seconds, "spans_a_request": told["spans"] / requests, "rounds": made}


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Microseconds of CPU time a request, by round."""
    return asyncio.run(_measure(settings))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """At most 2 % of what the services that trace take without; and every span arrived."""
    middle_us = statistics.median(one["all_us"] for one in measured["rounds"])
    share = f"spans of a request alone, of the {LIGHT_MS:g} ms that gateway, scheduler and KV manager take"
    return [
        at_most(share, middle_us / LIGHT_MS / 10.0, MOST_PERCENT, " %"),
        at_least("spans of a request alone that arrived", measured["spans_a_request"], SPANS_A_REQUEST),
    ]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    rows = []
    for step, name in {**STEPS, "all_us": "together"}.items():
        values = [one[step] for one in measured["rounds"]]
        rows.append((name, f"{statistics.median(values):.0f}", f"{min(values):.0f} to {max(values):.0f}"))
    note = (
        f"Microseconds of CPU time a request, sampled, without a server. Medians of {len(measured['rounds'])} "
        f"processes, each of {measured['seconds_a_round']} seconds at {REQUESTS_A_SECOND} requests/s."
    )
    return [Table("Spans of a request alone", ("", "us", "least to most"), rows, note)]
