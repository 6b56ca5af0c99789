"""How long a decision of the KV manager takes: one turn with a plan's result and the next plan, at batch 16, with 10,
1,000 and 10,000 jobs queued.

    python -m benchmarks.kvmanager_decision [--policy proactive] [--iterations 400]

Prints JSON: microseconds a turn, by queued jobs. Every job of the batch grows as it runs, and the batch comes to fill
the pool, so growth, lookahead, reclaims and uploads are all decided. Their consequences are handled between the turns.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from statistics import median, quantiles

from services.domain.ids import CommandNumber, Epoch, JobId, PlanNumber
from services.domain.protocol import (
    Ack,
    Applied,
    ArrivedJob,
    Done,
    Finished,
    Jobs,
    KvToWorker,
    Offload,
    OrderChange,
    PlanEntry,
    Planned,
    Rank,
    ReclaimRequest,
    Upload,
    WorkerPools,
)
from services.kvmanager.machine.kv_job import KvState
from services.kvmanager.machine.kv_manager import KvManager
from services.kvmanager.machine.kv_manager_events import (
    Command,
    Event,
    FromScheduler,
    FromWorker,
    ToScheduler,
    ToWorker,
)
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES, KvConfig, kv_policy_named

EPOCH = Epoch(1)
BATCH = 16
BLOCK_SIZE = 16
LEVELS = 10
PROMPT_TOKENS = 64
DEVICE_BLOCKS = 512
MOST_ITERATIONS = 400
"""After as many the batch holds 464 of the 512 blocks."""


class Bench:
    """A KV manager between a scheduler that runs the best jobs and a worker that does everything at once."""

    def __init__(self, queued: int, policy: str) -> None:
        self.manager = KvManager(KvConfig(kv_policy_named(policy)))
        self.positions = {JobId(f"job-{number}/0"): 0 for number in range(queued)}
        self.now_s = 0.0
        self.plan = 0
        jobs = tuple(ArrivedJob(job_id, PROMPT_TOKENS, 576, number) for number, job_id in enumerate(self.positions))
        order = tuple(
            OrderChange(job_id, Rank(number * LEVELS // queued, float(number), number))
            for number, job_id in enumerate(self.positions)
        )
        quanta_s = tuple(0.01 * 2**level for level in range(LEVELS))
        self.pump([FromScheduler(EPOCH, Jobs(EPOCH, jobs, order, BATCH, quanta_s, 10.0))])
        self.pump([FromWorker(EPOCH, WorkerPools(EPOCH, BLOCK_SIZE, DEVICE_BLOCKS, 8 * DEVICE_BLOCKS))])

    def pump(self, events: list[Event]) -> None:
        """Takes turns until no message is left."""
        while events:
            events = list(self.answers(self.manager.handle(events, self.now_s)))

    def answers(self, commands: list[Command]) -> Iterator[Event]:
        """The answers of scheduler and worker to these commands."""
        for command in commands:
            if isinstance(command, ToWorker):
                yield from self.acknowledged(command.message)
            elif isinstance(command, ToScheduler) and isinstance(command.message, ReclaimRequest):
                yield FromScheduler(EPOCH, Ack(command.message.job_id))

    @staticmethod
    def acknowledged(message: KvToWorker) -> Iterator[Event]:
        """Applied and Done at once."""
        yield FromWorker(EPOCH, Applied(CommandNumber(message.command_number)))
        if isinstance(message, Offload | Upload):
            yield FromWorker(EPOCH, Done(message.command_number))

    def plan_next(self) -> list[Event]:
        """The next plan: the best residents decode a token, fresh ones are prefilled."""
        entries: list[PlanEntry] = []
        for job_id in self.positions:
            if len(entries) == BATCH:
                break
            if self.manager.state_of(job_id) is KvState.DEVICE:
                at = self.positions[job_id]
                to = at + 1 if at else PROMPT_TOKENS
                entries.append(PlanEntry(job_id, at, to))
                self.positions[job_id] = to
        self.plan += 1
        return [FromScheduler(EPOCH, Planned(PlanNumber(self.plan), tuple(entries)))]

    def iterations_us(self, count: int) -> list[float]:
        """Microseconds of `count` turns; the peers' answers are handled between them and not counted."""
        self.pump(self.plan_next())
        took_us: list[float] = []
        for _ in range(count):
            self.now_s += 0.01
            turn = [FromScheduler(EPOCH, Finished(PlanNumber(self.plan))), *self.plan_next()]
            began = time.perf_counter()
            commands = self.manager.handle(turn, self.now_s)
            took_us.append((time.perf_counter() - began) * 1e6)
            self.pump(list(self.answers(commands)))
        return took_us


def main(argv: list[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Decision time of the KV manager.")
    parser.add_argument("--policy", choices=KV_POLICY_NAMES, default="proactive")
    parser.add_argument("--iterations", type=int, default=MOST_ITERATIONS)
    arguments = parser.parse_args(argv)
    figures: dict[str, dict[str, float]] = {}
    for queued in (10, 1_000, 10_000):
        took_us = Bench(queued, arguments.policy).iterations_us(min(arguments.iterations, MOST_ITERATIONS))
        p99 = quantiles(took_us, n=100)[98]
        figures[str(queued)] = {"p50_us": round(median(took_us), 1), "p99_us": round(p99, 1)}
    json.dump({"policy": arguments.policy, "max_batch": BATCH, "queued_jobs": figures}, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
