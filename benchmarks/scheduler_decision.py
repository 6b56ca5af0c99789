"""Time of one decision of the scheduler: a result in, all commands out, at batch 16 with many jobs queued. Prints JSON.

Every queued job is resident, which is the worst case: all of them could be planned. Jobs never run out: one that ends
is followed by a new one.
"""

import argparse
import gc
import json
import platform
import statistics
import time

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.ids import Epoch, JobId
from services.domain.protocol import IterationResult, Resident, SampledToken
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    End,
    Event,
    FromKv,
    KvConnected,
    SendPlan,
    Submit,
    WorkerJoined,
)
from services.scheduler.scheduler_config import Charge, PolicyName, SchedulerConfig

EPOCH = Epoch(1)
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 96
ITERATION_S = 0.02
PROFILE = CostProfile(
    (PrefillCost(16, 0.01), PrefillCost(2048, 0.8)),
    tuple(DecodeCost(batch, context, 0.01 + batch * 2e-4) for batch in (1, 16) for context in (16, 1024)),
)


def arrive(number: int) -> list[Event]:
    """A job that is resident at once."""
    job_id = JobId(f"request-{number}/0")
    return [
        Submit(job_id, PROMPT_TOKENS, OUTPUT_TOKENS),
        FromKv(EPOCH, Resident(job_id, PROMPT_TOKENS + OUTPUT_TOKENS, 0, number)),
    ]


def decisions_us(config: SchedulerConfig, queued: int, count: int) -> list[float]:
    """Microseconds of each of `count` decisions with that many jobs queued."""
    scheduler = Scheduler(config)
    scheduler.handle([WorkerJoined(EPOCH, 10**9, 4096, PROFILE), KvConnected()], 0.0)
    plans: list[SendPlan] = []
    known: dict[JobId, int] = {}

    def take(commands: list[Command]) -> int:
        plans.extend(command for command in commands if isinstance(command, SendPlan))
        return sum(isinstance(command, End) for command in commands)

    for number in range(queued):
        take(scheduler.handle(arrive(number), 0.0))
    arrived = queued
    times_us: list[float] = []
    now_s = 0.0
    for _ in range(count):
        now_s += ITERATION_S
        plan = plans.pop(0)
        tokens = []
        for entry in plan.entries:
            if entry.to_token == known.get(entry.job_id, PROMPT_TOKENS):
                known[entry.job_id] = entry.to_token + 1
                tokens.append(SampledToken(entry.job_id, 7, False))
        result = IterationResult(EPOCH, plan.plan_number, tuple(tokens), (), ITERATION_S)
        begin = time.thread_time()
        commands = scheduler.handle([result], now_s)
        times_us.append((time.thread_time() - begin) * 1e6)
        for _ in range(take(commands)):
            take(scheduler.handle(arrive(arrived), now_s))
            arrived += 1
    return times_us


def main() -> None:
    """Measures the named policies at every queue length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--policies", nargs="*", default=["skip-join-mlfq"], choices=[name.value for name in PolicyName]
    )
    parser.add_argument("--queued", nargs="*", type=int, default=[10, 1_000, 10_000])
    parser.add_argument("--charge", default="wall", choices=[charge.value for charge in Charge])
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--decisions", type=int, default=3_000)
    arguments = parser.parse_args()
    gc.disable()
    rows = []
    for policy in arguments.policies:
        for queued in arguments.queued:
            config = SchedulerConfig(
                policy=PolicyName(policy), max_batch=arguments.max_batch, charge=Charge(arguments.charge)
            )
            times_us = sorted(decisions_us(config, queued, arguments.decisions))
            rows.append(
                {
                    "policy": policy,
                    "queued": queued,
                    "median_us": round(statistics.median(times_us), 1),
                    "p99_us": round(times_us[len(times_us) * 99 // 100], 1),
                }
            )
    figures = {"max_batch": arguments.max_batch, "charge": arguments.charge, "decisions": rows}
    print(json.dumps({"machine": platform.processor() or platform.machine(), **figures}, indent=1))


if __name__ == "__main__":
    main()
