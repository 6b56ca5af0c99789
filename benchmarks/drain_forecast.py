"""Whether the scheduler knows how long it will be busy: predicted against true time to drain.

Simulated, on the profile of Llama-3-8B on an H100 with batches of 64, so the figures do not depend on the machine that
makes them. A trace is cut off at several points. There the scheduler is asked how long it will take until the last of
its jobs ends; then no job comes any more, and the simulation tells. The traces are those of foreknowledge.py, at a load
where a queue builds up. It learns lengths from the jobs that have ended by then, under `gittins` with the policy's own
learner, under `fcfs`, which has none, with one of its own. Also timed here: one prediction, with many jobs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.foreknowledge import CAPACITY_JOBS, FCFS, OFF, PROFILE, TRACES, Variant, jobs_of
from benchmarks.goals_and_tables import Goal, Table, at_most, seconds
from benchmarks.machine import cores
from benchmarks.settings import BenchError, BenchSettings
from services.domain.ids import Epoch, JobId
from services.experiments.cases import simulated_jobs
from services.experiments.processes import over_processes
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_events import KvConnected, Submit, WorkerJoined
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.simulation import simulate

TRACE_NAMES = ("clients", "many clients", "max_tokens", "conv")
JOBS = 1600
QUICK_JOBS = 400
LOAD = 1.2
SEED = 1
CUTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MOST_ERROR = 0.25
TIMED_JOBS = 10_000
TIMED_CALLS = 200
MOST_PREDICTION_S = 100e-6


@dataclass(frozen=True, slots=True)
class DrainTask:
    """A trace under a variant, cut off at every point."""

    trace: str
    variant: Variant
    jobs: int

    def run(self) -> list[dict[str, Any]]:
        """The prediction and the truth at each point."""
        traffic = TRACES[self.trace](self.jobs, SEED)
        sample = simulated_jobs(traffic.trace[:: -(-len(traffic.trace) // CAPACITY_JOBS)])
        rate_per_s = LOAD * fcfs_capacity_per_s(FCFS.setup, sample)
        jobs = jobs_of(traffic, rate_per_s, self.variant)
        return [self._at(jobs[: round(cut * len(jobs))]) for cut in CUTS]

    def _at(self, jobs: Sequence[Any]) -> dict[str, Any]:
        asked_s = jobs[-1].arrival_s + 2 * self.variant.setup.hop_s
        simulation = simulate(self.variant.setup, jobs, foresee_s=asked_s)
        if any(outcome.error is not None for outcome in simulation.outcomes):
            raise BenchError("a job failed")
        (foreseen,) = simulation.foreseen
        return {
            "trace": self.trace,
            "policy": self.variant.policy.value,
            "jobs": len(jobs),
            "predicted_s": round(foreseen.drain_s, 3),
            "work_s": round(foreseen.work_s, 3),
            "true_s": round(simulation.duration_s - asked_s, 3),
        }


def prediction_s(jobs: int) -> float:
    """Median seconds of one prediction with so many jobs."""
    setup = OFF.setup
    machine = Scheduler(setup.scheduler)
    joined = WorkerJoined(Epoch(1), setup.device_tokens, setup.max_model_len, setup.cost)
    submits = [Submit(JobId(str(number)), 100 + number % 900, 256) for number in range(jobs)]
    machine.handle([joined, KvConnected(), *submits], 0.0)
    taken_s = []
    for _ in range(TIMED_CALLS):
        began_s = time.perf_counter()
        machine.iterations.backlog.predicted()
        taken_s.append(time.perf_counter() - began_s)
    return median(taken_s)


def _run(task: DrainTask, report: Callable[[int], None]) -> list[dict[str, Any]]:
    return task.run()


def measure(settings: BenchSettings) -> dict[str, Any]:
    """All traces under both policies."""
    jobs = settings.pick(JOBS, QUICK_JOBS)
    tasks = [DrainTask(trace, variant, jobs) for trace in TRACE_NAMES for variant in (OFF, FCFS)]
    rows = [row for task_rows in over_processes(_run, tasks, cores(), lambda done: None) for row in task_rows]
    return {"profile": PROFILE, "load": LOAD, "points": rows, "prediction_s": prediction_s(TIMED_JOBS)}


def _errors(measured: dict[str, Any], trace: str, policy: str) -> list[float]:
    return [
        abs(row["predicted_s"] / row["true_s"] - 1)
        for row in measured["points"]
        if row["trace"] == trace and row["policy"] == policy
    ]


def trace_error(measured: dict[str, Any], trace: str, policy: str) -> float:
    """The median error of the trace's points, as a share of the true time."""
    return median(_errors(measured, trace, policy))


def goals(measured: dict[str, Any]) -> list[Goal]:
    """The median trace under each policy, and the time of one prediction."""
    found = [
        at_most(
            f"time to drain under {policy}, median error of {len(TRACE_NAMES)} traces",
            100 * median(trace_error(measured, trace, policy) for trace in TRACE_NAMES),
            100 * MOST_ERROR,
            "%",
        )
        for policy in ("gittins", "fcfs")
    ]
    per_call_us = measured["prediction_s"] * 1e6
    return [*found, at_most(f"a prediction with {TIMED_JOBS} jobs", per_call_us, MOST_PREDICTION_S * 1e6, "us")]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    rows = []
    for trace in TRACE_NAMES:
        for policy in ("gittins", "fcfs"):
            points = [row for row in measured["points"] if (row["trace"], row["policy"]) == (trace, policy)]
            last = points[-1]
            error = trace_error(measured, trace, policy)
            worst = max(_errors(measured, trace, policy))
            ends = (seconds(last["predicted_s"]), seconds(last["true_s"]))
            rows.append((trace, policy, *ends, f"{error:.0%}", f"{worst:.0%}"))
    note = f"Simulated: {measured['profile']}, load {measured['load']}; error: median and worst of {len(CUTS)} points."
    heading = ("trace", "policy", "predicted at the end, s", "true, s", "median error", "worst")
    return [Table("Predicted and true time to drain", heading, rows, note)]
