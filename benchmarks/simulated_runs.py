"""A server's run as the simulator predicts it: the same trace, the same settings and a measured cost profile, and
figures under the same names as those of a live trace run. Pure.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.servers import Result
from benchmarks.settings import BenchError
from services.experiments.cases import CAPACITY_BATCHES, CAPACITY_JOBS, simulated_jobs
from services.experiments.runs import record_of
from services.experiments.simulated_server import SimulateSettings, server_setup
from services.runtime.profile_file import Profile
from services.runtime.settings import resolve
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.server_setup import ServerSetup
from services.simulator.simulation import simulate
from services.workloads.calibration import LoadedTrace, Need, loaded_trace
from services.workloads.job_records import result
from services.workloads.workload import TraceJob, Workload, make_trace, read_trace, scale_arrivals, trace_line

Figures = dict[str, float]

SLOWDOWNS = (0.9, 1.0, 1.1, 1.2, 1.3, 1.5)
"""Where the simulator is asked. Batches are fuller on a slower worker, so its iterations are longer by more than that,
and fewer.
"""

_CAPACITY_SEED = 1_000_003
"""Not the seed of any trace: capacity is measured with other jobs than those served."""

_TIMES = {
    "mean_jct_s": ("jct_s", "mean"),
    "p99_jct_s": ("jct_s", "p99"),
    "mean_ttft_s": ("ttft_s", "mean"),
    "mean_per_output_token_s": ("per_output_token_s", "mean"),
}
_SCHEDULER = ("busy_s", "plan_wait_s", "iterations", "preemptions")
_KV = ("stall_s", "recomputed_tokens")


@dataclass(frozen=True, slots=True)
class ServedBy:
    """The settings given both to `fastserve up` and to the simulator; all others are the services' defaults.
    `slowdown`, `overhead_s` and `hop_s` are for the simulator alone.
    """

    max_batch: int
    device_tokens: int
    host_tokens: int
    slowdown: float = 1.0
    overhead_s: float = 0.0
    hop_s: float = SimulateSettings.model_fields["hop"].default

    def flags(self, policy: str, kv_policy: str) -> list[str]:
        """Flags of `fastserve up`, except the engine's."""
        return ["--policy", policy, "--kv-policy", kv_policy, *self.pools()]

    def pools(self) -> list[str]:
        """Flags of the pools, which `fastserve profile` takes too."""
        return ["--kv-device-tokens", str(self.device_tokens), "--kv-host-tokens", str(self.host_tokens)]

    def setup(self, profile: Profile, policy: str, kv_policy: str) -> ServerSetup:
        """The simulator's settings of this server."""
        values: Mapping[str, object] = {
            "policy": policy,
            "kv_policy": kv_policy,
            "max_batch": self.max_batch,
            "kv_device_tokens": self.device_tokens,
            "kv_host_tokens": self.host_tokens,
            "slowdown": self.slowdown,
            "hop": self.hop_s,
        }
        return replace(
            server_setup(resolve(SimulateSettings, "simulate", values, {}), profile), overhead_s=self.overhead_s
        )


def figures_of(content: Result) -> Figures:
    """The figures to compare, from the content of a `result.json`. Raises BenchError if jobs failed."""
    if content["failed"]:
        raise BenchError(f"{content['failed']} of {content['jobs']} jobs failed")
    kv = content["kv"]
    return {
        **{name: content["scheduler"][name] for name in _SCHEDULER},
        **{name: kv[name] for name in _KV},
        "moved_gb": (kv["offloaded_bytes"] + kv["uploaded_bytes"]) / 1e9,
        "duration_s": content["duration_s"],
        **{name: content[field][cell] for name, (field, cell) in _TIMES.items()},
    }


def simulated_content(by: ServedBy, profile: Profile, pair: tuple[str, str], trace: Sequence[TraceJob]) -> Result:
    """What `result.json` would be of a simulated run of the trace."""
    simulation = simulate(by.setup(profile, *pair), simulated_jobs(trace))
    records = [record_of(outcome) for outcome in simulation.outcomes]
    content: dict[str, Any] = result({}, records, simulation.counters)
    return content


def simulated_figures(by: ServedBy, profile: Profile, pair: tuple[str, str], trace: Sequence[TraceJob]) -> Figures:
    """The figures of a simulated run of the trace."""
    return figures_of(simulated_content(by, profile, pair, trace))


@dataclass(frozen=True, slots=True)
class Iterated:
    """How long a worker was busy, in seconds, and with how many iterations."""

    busy_s: float
    iterations: float

    @classmethod
    def of(cls, figures: Figures) -> "Iterated":
        """That of a run, live or simulated."""
        return cls(figures["busy_s"], figures["iterations"])


def iterated_by_slowdown(
    by: ServedBy, profile: Profile, pair: tuple[str, str], trace: Sequence[TraceJob]
) -> tuple[Iterated, ...]:
    """What the simulated worker does at each of SLOWDOWNS."""
    at = (replace(by, slowdown=slowdown) for slowdown in SLOWDOWNS)
    return tuple(Iterated.of(simulated_figures(each, profile, pair, trace)) for each in at)


def fitted_slowdown(simulated: Sequence[Sequence[Iterated]], live: Sequence[Iterated]) -> float:
    """The slowdown at which iterations of simulated workers take as long on average as those of live ones did, given
    the simulated runs at each of SLOWDOWNS, interpolated linearly.

    Busy seconds would not tell: unless a queue never ends, a slower worker makes up for it by fuller batches, and is
    busy hardly any longer.
    """
    wanted_s = _mean_s(live)
    means_s = [_mean_s(each) for each in zip(*simulated, strict=True)]
    place = min(max(bisect_right(means_s, wanted_s), 1), len(means_s) - 1)
    low, high, low_s, high_s = SLOWDOWNS[place - 1], SLOWDOWNS[place], means_s[place - 1], means_s[place]
    return round(low + (high - low) * (wanted_s - low_s) / (high_s - low_s), 4)


def _mean_s(runs: Sequence[Iterated]) -> float:
    return sum(each.busy_s for each in runs) / sum(each.iterations for each in runs)


def capacity_per_s(by: ServedBy, profile: Profile, shape: Workload) -> float:
    """Jobs per second of these lengths that FCFS in its best form sustains in the simulator."""
    jobs = max(CAPACITY_JOBS, CAPACITY_BATCHES * by.max_batch)
    sample = make_trace(replace(shape, jobs=jobs, rate=1.0, cv=0.0, seed=_CAPACITY_SEED), stratified=True)
    return fcfs_capacity_per_s(by.setup(profile, "fcfs", "defer"), simulated_jobs(sample))


def trace_for(by: ServedBy, profile: Profile, shape: Workload, need: Need) -> tuple[float, LoadedTrace]:
    """FCFS's capacity for the shape's lengths, and the trace that loads it as asked."""
    capacity = capacity_per_s(by, profile, shape)
    return capacity, loaded_trace(shape, capacity, need)


def as_a_file_holds_it(trace: Sequence[TraceJob]) -> list[TraceJob]:
    """The jobs as read back from the trace's file, which rounds arrivals."""
    return read_trace(trace_line(job) for job in trace)


def trace_of(workload: Workload) -> list[TraceJob]:
    """The jobs of a loaded trace once more, from its workload alone."""
    return as_a_file_holds_it(scale_arrivals(make_trace(workload, stratified=True), workload.rate))
