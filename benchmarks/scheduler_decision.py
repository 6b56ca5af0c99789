"""Time of one decision of the scheduler: a result in, all commands out, at batch 16 with many jobs queued. Prints JSON.

Every queued job is resident, which is the worst case: all of them could be planned. Jobs never run out: one that ends
is followed by a new one. `make bench` measures the default policy.
"""

import argparse
import gc
import json
import platform
import statistics
import time
from collections import deque
from collections.abc import Sequence

from services.domain.cost import CostProfile, DecodeCost, PrefillCost
from services.domain.ids import Epoch, JobId
from services.domain.protocol import IterationResult, PlansGivenBack, Resident, SampledToken
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    End,
    Event,
    FromKv,
    KvConnected,
    RecallPlans,
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


class PlanRunner:
    """A worker that runs plans one by one, and has begun none of those that are recalled."""

    def __init__(self) -> None:
        self._plans: deque[SendPlan] = deque()
        self._known: dict[JobId, int] = {}

    def hear(self, commands: Sequence[Command]) -> list[PlansGivenBack]:
        """Take new plans; returns the answers to recalls."""
        self._plans += [command for command in commands if isinstance(command, SendPlan)]
        recalls = [command for command in commands if isinstance(command, RecallPlans)]
        for recall in recalls:
            while self._plans and self._plans[-1].plan_number >= recall.first_plan_number:
                self._plans.pop()
        return [PlansGivenBack(recall.epoch, recall.first_plan_number) for recall in recalls]

    def run(self) -> IterationResult:
        """The result of the next plan."""
        plan = self._plans.popleft()
        tokens = []
        for entry in plan.entries:
            if entry.to_token == self._known.get(entry.job_id, PROMPT_TOKENS):
                self._known[entry.job_id] = entry.to_token + 1
                tokens.append(SampledToken(entry.job_id, 7, False))
        return IterationResult(EPOCH, plan.plan_number, tuple(tokens), (), ITERATION_S)


class Decisions:
    """A scheduler and its worker."""

    def __init__(self, config: SchedulerConfig, queued: int) -> None:
        self._scheduler = Scheduler(config)
        self._worker = PlanRunner()
        self._arrived = 0
        self._turn([WorkerJoined(EPOCH, 10**9, 4096, PROFILE), KvConnected()], 0.0)
        for _ in range(queued):
            self._arrive(0.0)

    def iterate(self, now_s: float) -> float:
        """The next plan has been run, and a job comes for each that ended. Returns the microseconds of the decision."""
        ended, taken_us = self._turn([self._worker.run()], now_s)
        for _ in range(ended):
            self._arrive(now_s)
        return taken_us

    def _arrive(self, now_s: float) -> None:
        self._turn(arrive(self._arrived), now_s)
        self._arrived += 1

    def _turn(self, events: Sequence[Event], now_s: float) -> tuple[int, float]:
        """How many jobs ended, and the microseconds that it took, those of an answer to a recall included."""
        begin = time.thread_time()
        commands = self._scheduler.handle(events, now_s)
        taken_us = (time.thread_time() - begin) * 1e6
        ended = sum(isinstance(command, End) for command in commands)
        for given_back in self._worker.hear(commands):
            more, more_us = self._turn([given_back], now_s)
            ended, taken_us = ended + more, taken_us + more_us
        return ended, taken_us


def decisions_us(config: SchedulerConfig, queued: int, count: int) -> list[float]:
    """Microseconds of each of `count` decisions with that many jobs queued."""
    decisions = Decisions(config, queued)
    return [decisions.iterate(number * ITERATION_S) for number in range(1, count + 1)]


def main() -> None:
    """Measures the named policies at every queue length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--policies", nargs="*", default=[PolicyName.GITTINS.value], choices=[name.value for name in PolicyName]
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
