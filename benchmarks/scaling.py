"""Worker groups that come and go under bursts: by the scheduler's forecast, by the length of its queue, and not at all.

Simulated, on the profile of Llama-3-8B on an H100 with batches of 64, so the figures do not depend on the machine that
makes them. Jobs are those of foreknowledge.py's trace `clients`, under the default policy, and the same with prompts
and outputs an eighth as long. They arrive at QUIET_LOAD times what one group sustains, and in bursts at BURST_LOADS
times. A group that is wanted serves START_S seconds later; a group that goes drains first. All rules scale with the
code of `fastserve autoscale`, after the same quiet times.

The forecast is the scheduler's own (services/scheduler/policies/group_demand.py), with the default target. The queue is
that of jobs beyond the batches, as engines tell it and autoscalers of pods are set up with it: a group for every so
many jobs that wait, rounded up. How many is best depends on the jobs, so several are tried.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.foreknowledge import CAPACITY_JOBS, FCFS, MAX_BATCH, PROFILE, TRACES
from benchmarks.goals_and_tables import Goal, Table, at_most, seconds
from benchmarks.machine import cores
from benchmarks.settings import BenchError, BenchSettings
from services.autoscaler.scaling import ScaleLimits
from services.experiments.cases import simulated_jobs, with_equal_limits
from services.experiments.named_profiles import find_profile
from services.experiments.processes import over_processes
from services.experiments.simulated_server import SimulateSettings, server_setup
from services.runtime.settings import resolve
from services.scheduler.policies.group_demand import DemandLimits, GroupDemand
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.outcome import Simulation
from services.simulator.server_setup import SimulatedJob
from services.simulator.simulated_group import SimulatedGroup
from services.simulator.simulated_scaling import GroupsWanted, ScalingSetup
from services.simulator.simulation import simulate
from services.workloads.job_records import percentile

TRACE = "clients"
MOST_GROUPS = 4
SHORTER = {"long": 1, "short": 8}
"""By what prompts and outputs are divided."""
QUIET_LOAD = 0.4
BURST_LOADS = (1.5, 3.0)
"""Of the periods."""
PERIOD_S, BURST_S = 180.0, 45.0
START_S = 30.0
QUIET_S = 30.0
TARGET_S = 5.0
QUEUE_TARGETS = (4, 16, 64)
FIXED = (1, 2, 4)
SEED = 1
FORECAST = "forecast"


def arrivals_s(capacity_per_s: float, burst_loads: Sequence[float], random: Random) -> list[float]:
    """Poisson arrivals; each period begins quietly and ends with a burst."""
    times_s: list[float] = []
    at_s = 0.0
    while True:
        in_burst = at_s % PERIOD_S >= PERIOD_S - BURST_S
        load = burst_loads[int(at_s // PERIOD_S)] if in_burst else QUIET_LOAD
        at_s += random.expovariate(capacity_per_s * load)
        if at_s >= len(burst_loads) * PERIOD_S:
            return times_s
        times_s.append(at_s)


def by_forecast(quiet_s: float = QUIET_S) -> GroupsWanted:
    """As the scheduler tells autoscalers."""
    demand = GroupDemand(DemandLimits(TARGET_S, quiet_s, 1, MOST_GROUPS))

    def wanted(groups: Mapping[int, SimulatedGroup], now_s: float) -> int:
        backlogs = [group.scheduler.iterations.backlog.predicted() for group in groups.values()]
        return demand.update(backlogs, now_s).wanted

    return wanted


class QueueRule:
    """A group for every `target_jobs` jobs that wait: the most of the quiet time, as an HPA holds it."""

    def __init__(self, target_jobs: int, quiet_s: float) -> None:
        self._target_jobs = target_jobs
        self._quiet_s = quiet_s
        self._recent: deque[tuple[float, int]] = deque()

    def wanted(self, waiting: float, now_s: float) -> int:
        """Groups, 1 to MOST_GROUPS."""
        recent = self._recent
        recent.append((now_s, min(max(1, ceil(waiting / self._target_jobs)), MOST_GROUPS)))
        while recent[0][0] < now_s - self._quiet_s:
            recent.popleft()
        return max(count for _, count in recent)


def by_queue(target_jobs: int, quiet_s: float = QUIET_S, max_batch: int = MAX_BATCH) -> GroupsWanted:
    """By the jobs beyond the batches."""
    rule = QueueRule(target_jobs, quiet_s)

    def wanted(groups: Mapping[int, SimulatedGroup], now_s: float) -> int:
        waiting = sum(max(0, len(group.scheduler.jobs) - max_batch) for group in groups.values())
        return rule.wanted(waiting, now_s)

    return wanted


@dataclass(frozen=True, slots=True)
class ScalingTask:
    """One rule: `fixed` groups, or by the queue with this target, or by the forecast. `jobs`: of SHORTER."""

    jobs: str
    fixed: int = 0
    queue_target: int = 0
    burst_loads: tuple[float, ...] = BURST_LOADS

    @property
    def name(self) -> str:
        if self.fixed:
            return f"{self.fixed} fixed"
        return f"queue of {self.queue_target}" if self.queue_target else FORECAST

    def run(self) -> dict[str, Any]:
        """Its figures."""
        values: dict[str, object] = {"max_batch": MAX_BATCH, "groups": self.fixed or 1}
        setup = server_setup(resolve(SimulateSettings, "simulate", values, {}), find_profile(PROFILE))
        capacity_per_s, jobs = traffic(SHORTER[self.jobs], self.burst_loads)
        jobs = with_equal_limits(jobs, setup)  # nobody is told how long they become
        told = {"lengths": self.jobs, "rule": self.name, "capacity_per_s": round(capacity_per_s, 3)}
        if self.fixed:
            return told | figures(simulate(setup, jobs), self.fixed)
        wanted = by_queue(self.queue_target) if self.queue_target else by_forecast()
        scaling = ScalingSetup(wanted, ScaleLimits(1, MOST_GROUPS, QUIET_S, 1), START_S)
        return told | figures(simulate(setup, jobs, scaling=scaling))


def shortened(count: int, shorter: int) -> list[SimulatedJob]:
    """So many jobs of the trace, with prompts and outputs divided by `shorter`."""
    return [
        SimulatedJob(
            job.job_id,
            job.arrival_s,
            max(1, job.prompt_tokens // shorter),
            max(1, job.output_tokens // shorter),
            client_number=job.client_number,
        )
        for job in simulated_jobs(TRACES[TRACE](count, SEED).trace)
    ]


def traffic(shorter: int, burst_loads: Sequence[float]) -> tuple[float, list[SimulatedJob]]:
    """What one group sustains of these jobs, and the jobs."""
    capacity_per_s = fcfs_capacity_per_s(FCFS.setup, shortened(CAPACITY_JOBS, shorter))
    times_s = arrivals_s(capacity_per_s, burst_loads, Random(f"{SEED}/bursts"))
    jobs = shortened(len(times_s), shorter)
    return capacity_per_s, [replace(job, arrival_s=at_s) for job, at_s in zip(jobs, times_s, strict=True)]


def figures(simulation: Simulation, fixed: int = 0) -> dict[str, Any]:
    """Of all jobs, and of the groups; `fixed` of them, or those that came and went. Raises BenchError for a job that
    failed.
    """
    failed = [outcome for outcome in simulation.outcomes if outcome.error is not None]
    if failed:
        raise BenchError(f"{len(failed)} of {len(simulation.outcomes)} jobs failed: {failed[0].error}")
    jct_s = sorted(outcome.token_times_s[-1] - outcome.arrival_s for outcome in simulation.outcomes)
    first_s = sorted(outcome.token_times_s[0] - outcome.arrival_s for outcome in simulation.outcomes)
    group_s = sum(span.to_s - span.from_s for span in simulation.spans) or fixed * simulation.duration_s
    return {
        "jobs": len(jct_s),
        "mean_jct_s": round(fmean(jct_s), 3),
        "p99_jct_s": round(percentile(jct_s, 0.99), 3),
        "p99_first_token_s": round(percentile(first_s, 0.99), 3),
        "group_s": round(group_s, 1),
        "duration_s": round(simulation.duration_s, 1),
        "spans": [[span.group, round(span.from_s, 2), round(span.to_s, 2)] for span in simulation.spans],
    }


def _run(task: ScalingTask, report: Callable[[int], None]) -> dict[str, Any]:
    return task.run()


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Simulates all rules."""
    loads = settings.pick(BURST_LOADS, BURST_LOADS[:1])
    rules: list[dict[str, int]] = [{"fixed": count} for count in FIXED]
    rules += [{"queue_target": target} for target in QUEUE_TARGETS]
    tasks = [ScalingTask(jobs, burst_loads=loads, **rule) for jobs in SHORTER for rule in (*rules, {})]
    runs = over_processes(_run, tasks, cores(), lambda done: None)
    bursts = [[(number + 1) * PERIOD_S - BURST_S, (number + 1) * PERIOD_S] for number in range(len(loads))]
    shape = {"burst_loads": list(loads), "bursts": bursts, "most_groups": MOST_GROUPS}
    return {"profile": PROFILE, "max_batch": MAX_BATCH, **shape, "runs": runs}


def run_of(measured: dict[str, Any], lengths: str, rule: str) -> dict[str, Any]:
    """The run of these jobs by this rule."""
    found: dict[str, Any] = next(run for run in measured["runs"] if (run["lengths"], run["rule"]) == (lengths, rule))
    return found


def table_of(title: str, note: str, runs: Sequence[dict[str, Any]]) -> Table:
    """A line for each run."""
    rows = []
    for run in runs:
        came = sum(1 for _, from_s, _ in run["spans"] if from_s)
        durations = (run["mean_jct_s"], run["p99_jct_s"], run["p99_first_token_s"])
        rows.append((run["rule"], *map(seconds, durations), f"{run['group_s']:.0f}", str(came) if came else "-"))
    heading = ("groups", "mean JCT, s", "P99 JCT, s", "P99 first token, s", "group-seconds", "groups that came")
    return Table(title, heading, rows, note)


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    made = []
    for lengths in SHORTER:
        runs = [run for run in measured["runs"] if run["lengths"] == lengths]
        note = (
            f"Simulated: {measured['profile']}, batches of {measured['max_batch']}, {runs[0]['jobs']} jobs, "
            f"{runs[0]['capacity_per_s']:.1f} a second of which a group sustains. {PERIOD_S:g} s each of "
            f"{QUIET_LOAD:g} times that, the last {BURST_S:g} s of them at {listed(measured['burst_loads'])} times. "
            f"A group serves {START_S:g} s after it is wanted."
        )
        made.append(table_of(f"Groups that come and go under bursts, {lengths} jobs", note, runs))
    return made


def listed(loads: Sequence[float]) -> str:
    """1.5, 3 and 2."""
    *first, last = (f"{load:g}" for load in loads)
    return f"{', '.join(first)} and {last}" if first else last


def better_queues(measured: dict[str, Any], lengths: str) -> int:
    """Rules on the queue by which these jobs ended sooner than by the forecast, with fewer group-seconds."""
    ours = run_of(measured, lengths, FORECAST)
    queues = [run_of(measured, lengths, f"queue of {target}") for target in QUEUE_TARGETS]
    return sum(run["mean_jct_s"] < ours["mean_jct_s"] and run["group_s"] < ours["group_s"] for run in queues)


def goals(measured: dict[str, Any]) -> list[Goal]:
    """One target for all jobs: no queue is better in both figures, whichever target it has been given."""
    return [
        at_most(
            f"{lengths} jobs: queue lengths that scale better than the forecast, in mean JCT and group-seconds both",
            better_queues(measured, lengths),
            0,
        )
        for lengths in SHORTER
    ]


def draw(measured: dict[str, Any], folder: Path) -> list[Path]:
    """The picture of the groups over time."""
    from benchmarks.scaling_picture import draw_groups  # only a whole run draws, and matplotlib takes a second

    return [draw_groups(measured, folder)]
