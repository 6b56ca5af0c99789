"""What `--length-predictor` is worth: job completion times on traces that say more or less about output lengths.

Simulated, on the profile of Llama-3-8B on an H100 with batches of 64, so the figures do not depend on the machine that
makes them. Load is relative to what FCFS sustains of the trace's lengths. The traces:

- `clients`: 8 clients, medians of output lengths 16, 32, ... 2,048, within a client lognormal (sigma 0.4);
- `many clients`: 256 clients, medians drawn from the same range, so that there are few jobs of each;
- `max_tokens`: no clients; all jobs ask for one to eight times what they make, lognormal (median 128, sigma 1.2);
- `unrelated`: lengths as in `clients`, but the names are drawn at random;
- `conv`: segments of a public trace, whose jobs have neither names nor limits (traces/README.md). A job that is too
  long for the model is left out.

But for `max_tokens` all jobs ask for the same maximum. Each trace is served by FCFS, and by `gittins` in three ways:
without names, with classes by name and prompt length (`off`), and with the prediction (`online`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.goals_and_tables import Goal, Table, at_least, at_most, seconds
from benchmarks.machine import cores
from benchmarks.model_folders import ROOT
from benchmarks.settings import BenchError, BenchSettings
from services.experiments.cases import simulated_jobs, with_equal_limits
from services.experiments.named_profiles import find_profile
from services.experiments.processes import over_processes
from services.experiments.simulated_server import SimulateSettings, server_setup
from services.runtime.settings import resolve
from services.scheduler.scheduler_config import LengthPredictor, PolicyName
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.simulator.simulation import simulate
from services.workloads.job_records import percentile
from services.workloads.public_traces import convert
from services.workloads.workload import TraceJob, gamma_arrivals, scale_arrivals

PROFILE = "llama-3-8b-h100"
MAX_BATCH = 64
JOBS = 4000
SEEDS = (1, 2)
LOADS = (1.0, 1.2)
CAPACITY_JOBS = 640
CONV = ROOT / "traces" / "azure-llm-2023-conv-first-60-percent.csv"
CLIENTS, MANY_CLIENTS = 8, 256
SHORTEST_MEDIAN, LONGEST_MEDIAN = 16.0, 2048.0
WITHIN_CLIENT_SIGMA = 0.4
LONGEST_TOKENS = 4096
LEAST_GAIN, MOST_HARM = 0.10, 0.05
"""Of mean job completion times, as a share: where lengths are foreseeable, and where they are not."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A trace at any rate. `max_tokens`: what each job asks for; None: the same for all."""

    trace: Sequence[TraceJob]
    max_tokens: Sequence[int] | None = None


def _lognormal(random: Random, median: float, sigma: float) -> int:
    return min(max(1, round(random.lognormvariate(log(median), sigma))), LONGEST_TOKENS)


def _trace(outputs: Sequence[int], clients: Sequence[str], seed: int) -> list[TraceJob]:
    """Poisson arrivals, and prompts that say nothing."""
    prompts, arrivals = Random(f"{seed}/prompts"), Random(f"{seed}/arrivals")
    times_s = gamma_arrivals(len(outputs), 1.0, 1.0, arrivals)
    return [
        TraceJob(str(number), arrival_s, min(_lognormal(prompts, 300, 0.9), 3000), output, client=client)
        for number, (arrival_s, output, client) in enumerate(zip(times_s, outputs, clients, strict=True))
    ]


def _of_clients(jobs: int, seed: int, client_count: int) -> Traffic:
    random = Random(f"{seed}/{client_count} clients")
    # As many clients as there are octaves from the shortest median to the longest have one each; more draw theirs.
    octaves = [number if client_count == CLIENTS else random.uniform(0, CLIENTS - 1) for number in range(client_count)]
    clients = [random.randrange(client_count) for _ in range(jobs)]
    outputs = [_lognormal(random, SHORTEST_MEDIAN * 2 ** octaves[client], WITHIN_CLIENT_SIGMA) for client in clients]
    return Traffic(_trace(outputs, [f"client {client}" for client in clients], seed))


def _unrelated(jobs: int, seed: int) -> Traffic:
    random = Random(f"{seed}/names")
    related = _of_clients(jobs, seed, CLIENTS)
    return Traffic([replace(job, client=f"client {random.randrange(CLIENTS)}") for job in related.trace])


def _asking(jobs: int, seed: int) -> Traffic:
    random = Random(f"{seed}/limits")
    outputs = [_lognormal(random, 128, 1.2) for _ in range(jobs)]
    limits = [min(round(output * 2 ** random.uniform(0, 3)), LONGEST_TOKENS) for output in outputs]
    return Traffic(_trace(outputs, [""] * jobs, seed), limits)


def _conv(jobs: int, seed: int) -> Traffic:
    with CONV.open(encoding="utf-8") as lines:
        whole = convert(lines).jobs
    most_tokens = find_profile(PROFILE).max_model_len or LONGEST_TOKENS
    fitting = [job for job in whole if job.prompt_tokens + job.output_tokens <= most_tokens]
    return Traffic(fitting[(seed - 1) * jobs :][:jobs])


TRACES: dict[str, Callable[[int, int], Traffic]] = {
    "clients": lambda jobs, seed: _of_clients(jobs, seed, CLIENTS),
    "many clients": lambda jobs, seed: _of_clients(jobs, seed, MANY_CLIENTS),
    "max_tokens": _asking,
    "unrelated": _unrelated,
    "conv": _conv,
}
FORESEEABLE = ("clients", "many clients", "max_tokens")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve the traces. Not `named`: the clients' names are withheld."""

    name: str
    policy: PolicyName
    predictor: LengthPredictor = LengthPredictor.OFF
    named: bool = True

    @property
    def setup(self) -> ServerSetup:
        """The simulated server."""
        is_fcfs = self.policy is PolicyName.FCFS
        values: dict[str, object] = {
            "policy": self.policy,
            "kv_policy": "recompute" if is_fcfs else "proactive",
            "max_batch": MAX_BATCH,
            "length_predictor": self.predictor,
        }
        return server_setup(resolve(SimulateSettings, "simulate", values, {}), find_profile(PROFILE))


FCFS = Variant("FCFS", PolicyName.FCFS)
WITHOUT = Variant("gittins without names", PolicyName.GITTINS, named=False)
OFF = Variant("gittins, off", PolicyName.GITTINS)
ONLINE = Variant("gittins, online", PolicyName.GITTINS, LengthPredictor.ONLINE)
VARIANTS = (FCFS, WITHOUT, OFF, ONLINE)


def jobs_of(traffic: Traffic, rate_per_s: float, variant: Variant) -> list[SimulatedJob]:
    jobs = simulated_jobs(scale_arrivals(traffic.trace, rate_per_s))
    if traffic.max_tokens is None:
        jobs = with_equal_limits(jobs, variant.setup)
    else:
        jobs = [replace(job, max_tokens=most) for job, most in zip(jobs, traffic.max_tokens, strict=True)]
    return jobs if variant.named else [replace(job, client_number=0) for job in jobs]


def _figures(jobs: Sequence[SimulatedJob], variant: Variant) -> dict[str, Any]:
    outcomes = simulate(variant.setup, jobs).outcomes
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        raise BenchError(f"{len(failed)} of {len(jobs)} jobs failed: {failed[0].error}")
    jct_s = sorted(outcome.token_times_s[-1] - outcome.arrival_s for outcome in outcomes)
    return {"mean_jct_s": round(fmean(jct_s), 3), "p99_jct_s": round(percentile(jct_s, 0.99), 3)}


@dataclass(frozen=True, slots=True)
class Task:
    """A trace of a seed, under all variants and loads."""

    trace: str
    seed: int
    jobs: int
    loads: tuple[float, ...]

    def run(self) -> list[dict[str, Any]]:
        """The figures of each simulation."""
        traffic = TRACES[self.trace](self.jobs, self.seed)
        sample = simulated_jobs(traffic.trace[:: -(-len(traffic.trace) // CAPACITY_JOBS)])
        capacity = fcfs_capacity_per_s(FCFS.setup, sample)
        return [
            {"trace": self.trace, "seed": self.seed, "load": load, "variant": variant.name}
            | _figures(jobs_of(traffic, load * capacity, variant), variant)
            for load in self.loads
            for variant in VARIANTS
        ]


def _run(task: Task, report: Callable[[int], None]) -> list[dict[str, Any]]:
    return task.run()


def measure(settings: BenchSettings) -> dict[str, Any]:
    """Simulates all traces."""
    jobs, seeds = settings.pick(JOBS, 200), settings.pick(SEEDS, SEEDS[:1])
    loads = settings.pick(LOADS, LOADS[-1:])
    tasks = [Task(trace, seed, jobs, loads) for trace in TRACES for seed in seeds]
    runs = over_processes(_run, tasks, cores(), lambda done: None)
    return {
        "profile": PROFILE,
        "max_batch": MAX_BATCH,
        "jobs": jobs,
        "seeds": list(seeds),
        "loads": list(loads),
        "runs": [run for of_task in runs for run in of_task],
    }


def _over_seeds(measured: dict[str, Any], trace: str, load: float, variant: Variant, figure: str) -> float:
    wanted = (trace, load, variant.name)
    return fmean(run[figure] for run in measured["runs"] if (run["trace"], run["load"], run["variant"]) == wanted)


def change(measured: dict[str, Any], trace: str, load: float, variant: Variant = ONLINE) -> float:
    """By what share mean job completion times are greater than under `gittins` without names."""
    without, with_it = (_over_seeds(measured, trace, load, each, "mean_jct_s") for each in (WITHOUT, variant))
    return with_it / without - 1.0


def goals(measured: dict[str, Any]) -> list[Goal]:
    """A gain where lengths can be foreseen, no harm where they can't."""
    load = measured["loads"][-1]
    text = f"simulated: mean JCT with --length-predictor online at load {load}"
    gains = [
        at_least(f"{text}, '{trace}', sooner by", -100 * change(measured, trace, load), 100 * LEAST_GAIN, "%")
        for trace in FORESEEABLE
    ]
    harm = [
        at_most(f"{text}, '{trace}', later by", 100 * change(measured, trace, load), 100 * MOST_HARM, "%")
        for trace in TRACES
        if trace not in FORESEEABLE
    ]
    return [*gains, *harm]


def tables(measured: dict[str, Any]) -> list[Table]:
    """This part of the summary."""
    note = (
        f"Simulated: {measured['profile']}, batch {measured['max_batch']}, {measured['jobs']} jobs, mean of seeds "
        f"{', '.join(map(str, measured['seeds']))}. `off` and `online` as compared to `gittins` without names."
    )
    heading = ("trace, load", *(variant.name for variant in VARIANTS))
    made = []
    for figure, title in (("mean_jct_s", "mean"), ("p99_jct_s", "P99")):
        rows = []
        for trace in TRACES:
            for load in measured["loads"]:
                values = [_over_seeds(measured, trace, load, variant, figure) for variant in VARIANTS]
                base = values[VARIANTS.index(WITHOUT)]
                cells = [
                    seconds(value) + (f" ({value / base - 1:+.1%})" if variant in (OFF, ONLINE) else "")
                    for variant, value in zip(VARIANTS, values, strict=True)
                ]
                rows.append((f"{trace}, {load}", *cells))
        made.append(Table(f"Foreknowledge of output lengths: {title} job completion, seconds", heading, rows, note))
        note = ""
    return made
