"""Time that the router of two groups adds: to an arrival, whose group it chooses, and to an iteration, whose tokens and
ranks it hears. At batch 16 with many jobs queued. Prints JSON.

Every queued job is resident, and one that ends is followed by a new one, as in scheduler_decision.py.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Sequence

from benchmarks.scheduler_decision import EPOCH, ITERATION_S, OUTPUT_TOKENS, PROFILE, PROMPT_TOKENS, PlanRunner
from services.domain.ids import JobId
from services.domain.protocol import Arrive, Resident
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import (
    Command,
    End,
    Event,
    FromKv,
    KvConnected,
    Submit,
    ToKv,
    WorkerJoined,
)
from services.scheduler.routing.router import Routed, Router
from services.scheduler.scheduler_config import PolicyName, SchedulerConfig

GROUPS = 2


class RoutedTurns:
    """Two groups behind a router, and the microseconds that the router took."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._machines = {group: Scheduler(config) for group in range(GROUPS)}
        self._router = Router(config, self._machines)
        self._workers = [PlanRunner() for _ in range(GROUPS)]
        self._arrived = 0
        self.arrivals_us: list[float] = []
        self.iterations_us: list[float] = []
        joined = WorkerJoined(EPOCH, 10**9, 4096, PROFILE)
        for group in range(GROUPS):
            self._router.joined(group, joined)
            self._turn(group, [joined, KvConnected()], 0.0)

    def arrive(self, now_s: float) -> None:
        """A job arrives and is resident at once."""
        job_id = JobId(f"request-{self._arrived}/0")
        self._arrived += 1
        begin = time.thread_time()
        routed = self._router.submit(Submit(job_id, PROMPT_TOKENS, OUTPUT_TOKENS), now_s)
        self.arrivals_us.append((time.thread_time() - begin) * 1e6)
        assert isinstance(routed, Routed), routed
        commands, _ = self._turn(routed.group, [routed.submit], now_s)
        stays = [one.message.job for one in commands if isinstance(one, ToKv) and isinstance(one.message, Arrive)]
        resident = Resident(job_id, PROMPT_TOKENS + OUTPUT_TOKENS, 0, stays[0].stay_number)
        self._turn(routed.group, [FromKv(EPOCH, resident)], now_s)

    def iterate(self, group: int, now_s: float) -> None:
        """The group's worker ends its next plan."""
        commands, took_us = self._turn(group, [self._workers[group].run()], now_s)
        self.iterations_us.append(took_us)
        for command in commands:
            if isinstance(command, End):
                self.arrive(now_s)

    def _turn(self, group: int, events: Sequence[Event], now_s: float) -> tuple[list[Command], float]:
        commands = self._machines[group].handle(events, now_s)
        begin = time.thread_time()
        self._router.heard(group, events, commands, now_s)
        assert not self._router.moves(), "both groups are busy"
        took_us = (time.thread_time() - begin) * 1e6
        for given_back in self._workers[group].hear(commands):
            more, more_us = self._turn(group, [given_back], now_s)
            commands, took_us = [*commands, *more], took_us + more_us
        return commands, took_us


def row(kind: str, queued: int, times_us: Sequence[float]) -> dict[str, object]:
    """Median and P99 of some times."""
    ordered = sorted(times_us)
    median_us, p99_us = statistics.median(ordered), ordered[len(ordered) * 99 // 100]
    return {"kind": kind, "queued": queued, "median_us": round(median_us, 1), "p99_us": round(p99_us, 1)}


def main() -> None:
    """Measures at every queue length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default=PolicyName.GITTINS.value, choices=[name.value for name in PolicyName])
    parser.add_argument("--queued", nargs="*", type=int, default=[100, 1_000, 10_000])
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--decisions", type=int, default=3_000)
    arguments = parser.parse_args()
    gc.disable()
    rows = []
    for queued in arguments.queued:
        turns = RoutedTurns(SchedulerConfig(policy=PolicyName(arguments.policy), max_batch=arguments.max_batch))
        for _ in range(queued):
            turns.arrive(0.0)
        turns.arrivals_us.clear()
        for number in range(arguments.decisions):
            turns.iterate(number % GROUPS, number * ITERATION_S)
        rows += [row("arrival", queued, turns.arrivals_us), row("iteration", queued, turns.iterations_us)]
    print(json.dumps({"max_batch": arguments.max_batch, "groups": GROUPS, "decisions": rows}, indent=1))


if __name__ == "__main__":
    main()
