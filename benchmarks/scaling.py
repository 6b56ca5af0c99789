"""Worker groups that come and go under bursts: by the scheduler's forecast, by the length of its queue, and not at all.

Simulated, on the profile of Llama-3-8B on an H100 with batches of 64, so the figures do not depend on the machine that
makes them. Jobs are those of foreknowledge.py's trace `clients`, under the default policy. They arrive at QUIET_LOAD
times what one group sustains, and in bursts at BURST_LOAD times. A group that is wanted serves START_S seconds later; a
group that goes drains first. All rules scale with the code of `fastserve autoscale`, after the same quiet times.

The forecast is the scheduler's own (services/scheduler/policies/group_demand.py). The queue is that of jobs beyond the
batches, as engines tell it and autoscalers of pods are set up with it: a group for every so many jobs that wait,
rounded up. How many is best depends on the jobs, so several are tried.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
QUIET_LOAD, BURST_LOAD = 0.4, 3.0
PERIOD_S, BURST_S = 300.0, 60.0
PERIODS = 3
START_S = 30.0
QUIET_S = 30.0
TARGET_S = 5.0
QUEUE_TARGETS = (4, 16, 64)
FIXED = (1, 2, 4)
SEED = 1
FORECAST = "forecast"


def arrivals_s(capacity_per_s: float, periods: int, random: Random) -> list[float]:
    """Poisson arrivals; each period begins quietly and ends with a burst."""
    times_s: list[float] = []
    at_s = 0.0
    while True:
        in_burst = at_s % PERIOD_S >= PERIOD_S - BURST_S
        at_s += random.expovariate(capacity_per_s * (BURST_LOAD if in_burst else QUIET_LOAD))
        if at_s >= periods * PERIOD_S:
            return times_s
        times_s.append(at_s)


def by_forecast() -> GroupsWanted:
    """As the scheduler tells autoscalers."""
    demand = GroupDemand(DemandLimits(TARGET_S, QUIET_S, 1, MOST_GROUPS))

    def wanted(groups: Mapping[int, SimulatedGroup], now_s: float) -> int:
        backlogs = [group.scheduler.iterations.backlog.predicted() for group in groups.values()]
        return demand.update(backlogs, now_s).wanted

    return wanted


def by_queue(target_jobs: int) -> GroupsWanted:
    """A group for every `target_jobs` jobs beyond the batches: the most of the quiet time, as an HPA holds it."""
    recent: deque[tuple[float, int]] = deque()

    def wanted(groups: Mapping[int, SimulatedGroup], now_s: float) -> int:
        waiting = sum(max(0, len(group.scheduler.jobs) - MAX_BATCH) for group in groups.values())
        recent.append((now_s, min(max(1, ceil(waiting / target_jobs)), MOST_GROUPS)))
        while recent[0][0] < now_s - QUIET_S:
            recent.popleft()
        return max(count for _, count in recent)

    return wanted


@dataclass(frozen=True, slots=True)
class ScalingTask:
    """One rule: `fixed` groups, or by the queue with this target, or by the forecast."""

    fixed: int = 0
    queue_target: int = 0
    periods: int = PERIODS

    @property
    def name(self) -> str:
        if self.fixed:
            return f"{self.fixed} fixed"
        return f"queue of {self.queue_target}" if self.queue_target else FORECAST

    def run(self) -> dict[str, Any]:
        """Its figures."""
        values: dict[str, object] = {"max_batch": MAX_BATCH, "groups": self.fixed or 1}
        setup = server_setup(resolve(SimulateSettings, "simulate", values, {}), find_profile(PROFILE))
        capacity_per_s, jobs = traffic(self.periods)
        jobs = with_equal_limits(jobs, setup)  # nobody is told how long they become
        if self.fixed:
            return _figures(self.name, simulate(setup, jobs), self.fixed) | {"capacity_per_s": round(capacity_per_s, 3)}
        wanted = by_queue(self.queue_target) if self.queue_target else by_forecast()
        scaling = ScalingSetup(wanted, ScaleLimits(1, MOST_GROUPS, QUIET_S, 1), START_S)
        return _figures(self.name, simulate(setup, jobs, scaling=scaling), 0)


def traffic(periods: int) -> tuple[float, list[SimulatedJob]]:
    """What one group sustains of these jobs, and the jobs."""
    lengths = TRACES[TRACE](CAPACITY_JOBS, SEED).trace
    capacity_per_s = fcfs_capacity_per_s(FCFS.setup, simulated_jobs(lengths))
    times_s = arrivals_s(capacity_per_s, periods, Random(f"{SEED}/bursts"))
    whole = simulated_jobs(TRACES[TRACE](len(times_s), SEED).trace)
    return capacity_per_s, [
        SimulatedJob(job.job_id, at_s, job.prompt_tokens, job.output_tokens, client_number=job.client_number)
        for job, at_s in zip(whole, times_s, strict=True)
    ]


def _figures(name: str, simulation: Simulation, fixed: int) -> dict[str, Any]:
    failed = [outcome for outcome in simulation.outcomes if outcome.error is not None]
    if failed:
        raise BenchError(f"{len(failed)} of {len(simulation.outcomes)} jobs failed: {failed[0].error}")
    jct_s = sorted(outcome.token_times_s[-1] - outcome.arrival_s for outcome in simulation.outcomes)
    first_s = sorted(outcome.token_times_s[0] - outcome.arrival_s for outcome in simulation.outcomes)
    group_s = sum(span.to_s - span.from_s for span in simulation.spans) or fixed * simulation.duration_s
    return {
        "rule": name,
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
    periods = settings.pick(PERIODS, 1)
    tasks = [ScalingTask(fixed=count, periods=periods) for count in FIXED]
    tasks += [ScalingTask(queue_target=target, periods=periods) for target in QUEUE_TARGETS]
    tasks.append(ScalingTask(periods=periods))
    runs = over_processes(_run, tasks, cores(), lambda done: None)
    bursts = [[(number + 1) * PERIOD_S - BURST_S, (number + 1) * PERIOD_S] for number in range(periods)]
    shape = {"periods": periods, "bursts": bursts, "most_groups": MOST_GROUPS}
    return {"profile": PROFILE, "max_batch": MAX_BATCH, **shape, "runs": runs}


def _run_named(measured: dict[str, Any], name: str) -> dict[str, Any]:
    run: dict[str, Any] = next(run for run in measured["runs"] if run["rule"] == name)
    return run


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    rows = []
    for run in measured["runs"]:
        came = sum(1 for group, *_ in run["spans"] if group)
        figures = (run["mean_jct_s"], run["p99_jct_s"], run["p99_first_token_s"])
        rows.append((run["rule"], *map(seconds, figures), f"{run['group_s']:.0f}", str(came) if run["spans"] else "-"))
    note = (
        f"Simulated: {measured['profile']}, batches of {measured['max_batch']}, {measured['runs'][0]['jobs']} jobs; "
        f"{PERIOD_S:g} s each of {QUIET_LOAD:g} times what a group sustains, the last {BURST_S:g} s of them at "
        f"{BURST_LOAD:g} times, {measured['periods']} times. A group serves {START_S:g} s after it is wanted."
    )
    heading = ("groups", "mean JCT, s", "P99 JCT, s", "P99 first token, s", "group-seconds", "groups that came")
    return [Table("Groups that come and go under bursts", heading, rows, note)]


def goals(measured: dict[str, Any]) -> list[Goal]:
    """Against two groups that stay, which cost as much or more."""
    ours, two = _run_named(measured, FORECAST), _run_named(measured, "2 fixed")
    return [
        at_most("mean JCT by the forecast, over that of 2 fixed groups", ours["mean_jct_s"] / two["mean_jct_s"], 1.0),
    ]


def draw(measured: dict[str, Any], folder: Path) -> list[Path]:
    """The picture of the groups over time."""
    from benchmarks.scaling_picture import draw_groups  # only a whole run draws, and matplotlib takes a second

    return [draw_groups(measured, folder)]
