"""Runs the cells over the cores, and measures each run: all that the tables and pictures ask for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

from evaluation.default_policy.cells import FCFS_RECOMPUTE, Cell, Contender
from evaluation.default_policy.traffic import jobs_of
from services.experiments.named_profiles import find_profile
from services.experiments.processes import OnProgress, over_processes
from services.experiments.simulated_server import SimulateSettings, server_setup
from services.runtime.settings import resolve
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import JobOutcome, Simulation, simulate
from services.workloads.calibration import peak_need_tokens
from services.workloads.job_records import percentile

AMPLE_TOKENS = 8_000_000
HOST_TOKENS = 8_000_000
TTFT_LIMIT_S, PER_TOKEN_LIMIT_S = 2.0, 0.1
"""The limits within which a job should be: first token, and each later one on average."""
CAPACITY_JOBS, CAPACITY_BATCHES = 600, 10
CAPACITY_SEED = 7
NUMBERS = (
    "jobs",
    "mean_s",
    "p50_s",
    "p95_s",
    "p99_s",
    "ttft_mean_s",
    "ttft_p95_s",
    "within",
    "silence_p99_s",
    "tokens_per_s",
    "preemptions",
    "moved_gb",
    "recomputed_tokens",
    "peak_device_tokens",
)
"""Of every run, in the order of the CSV. `silence_p99_s`: P99 over the jobs of a job's longest gap between tokens."""


@dataclass(frozen=True, slots=True)
class RunOf:
    """One simulation."""

    cell: Cell
    load: float
    seed: int
    contender: Contender


@dataclass(frozen=True, slots=True)
class Offered:
    """What a load is with a seed: jobs per second, and the device pool in tokens."""

    rate_per_s: float
    device_tokens: int


def _setup(cell: Cell, contender: Contender, device_tokens: int) -> ServerSetup:
    values: dict[str, object] = {
        "policy": contender.policy,
        "kv_policy": contender.kv_policy,
        "max_batch": cell.batch,
        "prefill_chunk": cell.chunk,
        "kv_device_tokens": device_tokens,
        "kv_host_tokens": HOST_TOKENS,
    }
    if contender.share is not None:
        values["first_token_share"] = contender.share
    return server_setup(resolve(SimulateSettings, "simulate", values, {}), find_profile(cell.profile))


def _capacity_task(cell: Cell, report: Callable[[int], None]) -> float:
    """Jobs per second that the best form of FCFS sustains with an ample pool."""
    count = min(max(CAPACITY_JOBS, CAPACITY_BATCHES * cell.batch), cell.shape.jobs)
    jobs = jobs_of(cell.shape, CAPACITY_SEED, 1.0)
    return fcfs_capacity_per_s(_setup(cell, FCFS_RECOMPUTE, AMPLE_TOKENS), jobs[:: len(jobs) // count], report)


def _need_task(task: tuple[Cell, float, int, float], report: Callable[[int], None]) -> int:
    """The peak need in tokens, under FCFS with an ample pool."""
    cell, load, seed, capacity = task
    setup = _setup(cell, FCFS_RECOMPUTE, AMPLE_TOKENS)
    jobs = jobs_of(cell.shape, seed, load * capacity)
    outcomes = simulate(setup, jobs, report).outcomes
    return peak_need_tokens(
        (job.arrival_s, outcome.token_times_s[-1], job.prompt_tokens + job.output_tokens)
        for job, outcome in zip(jobs, outcomes, strict=True)
        if outcome.token_times_s
    )


def _run_task(task: tuple[RunOf, Offered], report: Callable[[int], None]) -> dict[str, float]:
    run, point = task
    jobs: Sequence[SimulatedJob] = jobs_of(run.cell.shape, run.seed, point.rate_per_s)
    setup = _setup(run.cell, run.contender, point.device_tokens)
    return measured(simulate(setup, jobs, report))


def execute(
    cells: Sequence[Cell], processes: int, on_progress: OnProgress
) -> tuple[dict[RunOf, dict[str, float]], dict[tuple[Cell, float, int], Offered]]:
    """All runs of the cells with their numbers, and the points at which they were run."""
    capacities = dict(zip(cells, over_processes(_capacity_task, cells, processes, on_progress), strict=True))
    scarce = [point for cell in cells if cell.pool == "quarter" for point in cell.points()]
    tasks = [(cell, load, seed, capacities[cell]) for cell, load, seed in scarce]
    needs = dict(zip(scarce, over_processes(_need_task, tasks, processes, on_progress), strict=True))
    points = {
        (cell, load, seed): Offered(load * capacities[cell], _pool(cell, needs.get((cell, load, seed))))
        for cell in cells
        for _, load, seed in cell.points()
    }
    runs = [
        RunOf(cell, load, seed, contender)
        for cell in cells
        for _, load, seed in cell.points()
        for contender in cell.contenders
    ]
    run_tasks = [(run, points[run.cell, run.load, run.seed]) for run in runs]
    numbers = over_processes(_run_task, run_tasks, processes, on_progress)
    return dict(zip(runs, numbers, strict=True)), points


def _pool(cell: Cell, need_tokens: int | None) -> int:
    """A quarter of the need, but room for the longest job."""
    if need_tokens is None:
        return AMPLE_TOKENS
    longest = max(job.prompt_tokens + job.output_tokens for job in jobs_of(cell.shape, cell.seeds[0], 1.0))
    return max(need_tokens // 4, longest + 1024)


def _within(job: JobOutcome) -> bool:
    times_s = job.token_times_s
    later = len(times_s) - 1
    return times_s[0] - job.arrival_s <= TTFT_LIMIT_S and (
        later == 0 or (times_s[-1] - times_s[0]) / later <= PER_TOKEN_LIMIT_S
    )


def measured(simulation: Simulation) -> dict[str, float]:
    """The numbers of a run; jobs that the server refused are left out."""
    good = [job for job in simulation.outcomes if job.error is None and job.token_times_s]
    jct_s = sorted(job.token_times_s[-1] - job.arrival_s for job in good)
    ttft_s = sorted(job.token_times_s[0] - job.arrival_s for job in good)
    silence_s = sorted(max((b - a for a, b in pairwise(job.token_times_s)), default=0.0) for job in good)
    counters = simulation.counters
    begin_s = min(job.arrival_s for job in good)
    values = (
        len(good),
        fsum(jct_s) / len(good),
        percentile(jct_s, 0.5),
        percentile(jct_s, 0.95),
        percentile(jct_s, 0.99),
        fsum(ttft_s) / len(good),
        percentile(ttft_s, 0.95),
        sum(map(_within, good)) / len(good),
        percentile(silence_s, 0.99),
        sum(len(job.token_times_s) for job in good) / (simulation.duration_s - begin_s),
        counters.preemptions,
        (counters.offloaded_bytes + counters.uploaded_bytes) / 1e9,
        counters.recomputed_tokens,
        simulation.peak_device_kv_tokens,
    )
    return {name: float(value) for name, value in zip(NUMBERS, values, strict=True)}
