"""How fast the simulator is: 125,000 iterations at batch 16 with 2,000 jobs queued, on one core.

    python -m benchmarks.simulator_speed [--output-tokens 1000]

All jobs come at once and are of one length, so that under a multi-level feedback queue nearly all of them stay to the
end, and the device pool holds a small part of them, so that KV moves all the time: hardly any trace takes longer. FCFS
with KV reserved at admission, which moves nothing, is measured beside it.
"""

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_most
from benchmarks.settings import BenchSettings
from services.domain.copying import LinkSpeed
from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.kvmanager.policies.kv_config import KvConfig, kv_policy_named
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import simulate

MAX_BATCH = 16
JOBS = 2_000
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 1_000
"""So many of all jobs are 125,000 iterations of full batches."""
DEVICE_TOKENS = 32_768
MOST_SECONDS = 60.0
SERVED = ((PolicyName.SKIP_JOIN_MLFQ, "proactive"), (PolicyName.FCFS, "defer"))
PROFILE = CostProfile(
    (PrefillCost(16, 0.01), PrefillCost(2048, 0.3)),
    tuple(DecodeCost(batch, context, 0.01 + 1e-4 * batch) for batch in (1, 4, 16) for context in (64, 512, 2048)),
)


def server(policy: PolicyName, kv_policy: str) -> ServerSetup:
    """A host pool that holds all jobs' KV."""
    return ServerSetup(
        scheduler=SchedulerConfig(policy=policy, max_batch=MAX_BATCH, plans_in_flight=2),
        kv=KvConfig(kv_policy_named(kv_policy)),
        cost=PROFILE,
        kv_bytes_per_token=131_072,
        device_tokens=DEVICE_TOKENS,
        host_tokens=JOBS * (PROMPT_TOKENS + OUTPUT_TOKENS + 16),
        max_model_len=4096,
        link=LinkSpeed(bytes_per_s=25e9, latency_s=1e-5),
    )


def timed(policy: PolicyName, kv_policy: str, output_tokens: int) -> dict[str, Any]:
    """Seconds of a simulation, of this process alone."""
    jobs = [SimulatedJob(f"request-{number}/0", 0.0, PROMPT_TOKENS, output_tokens) for number in range(JOBS)]
    began_s = time.process_time()
    simulation = simulate(server(policy, kv_policy), jobs)
    seconds = time.process_time() - began_s
    iterations = simulation.counters.iterations
    return {
        "policy": policy.value,
        "kv_policy": kv_policy,
        "iterations": iterations,
        "seconds": round(seconds, 2),
        "iteration_us": round(seconds / iterations * 1e6, 1),
        "simulated_s": round(simulation.duration_s, 1),
        "preemptions": simulation.counters.preemptions,
        "moved_gb": round((simulation.counters.offloaded_bytes + simulation.counters.uploaded_bytes) / 1e9, 1),
    }


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Measures both policies."""
    output_tokens = settings.pick(OUTPUT_TOKENS, OUTPUT_TOKENS // 50)
    return {"max_batch": MAX_BATCH, "jobs": JOBS, "runs": [timed(*served, output_tokens) for served in SERVED]}


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The goal is a minute for each."""
    return [
        at_most(
            f"simulator: {run['iterations']} iterations of {run['policy']} with {run['kv_policy']}, "
            f"{measured['jobs']} jobs queued",
            run["seconds"],
            MOST_SECONDS,
            " s",
        )
        for run in measured["runs"]
    ]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    rows = [
        (
            f"{run['policy']}, {run['kv_policy']}",
            str(run["iterations"]),
            f"{run['seconds']:.1f}",
            f"{run['iteration_us']:.0f}",
            f"{run['simulated_s']:.0f}",
            str(run["preemptions"]),
            f"{run['moved_gb']:.0f}",
        )
        for run in measured["runs"]
    ]
    heading = ("policies", "iterations", "seconds", "us/iteration", "simulated seconds", "preemptions", "GB moved")
    title = f"The simulator on one core, batch {measured['max_batch']}, {measured['jobs']} jobs at once"
    return [Table(title, heading, rows)]


def main() -> None:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS)
    arguments = parser.parse_args()
    json.dump([timed(*served, arguments.output_tokens) for served in SERVED], sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
