"""One simulation of the evaluation: from a Run to its numbers. Same run, same numbers, in whatever process.

Lengths are stratified and arrivals stretched to the rate, so that a load is what it says for every seed: a heavy tail's
thousand draws, or a thousand bursty gaps, would else miss it by a tenth and more. The server is the one of `fastserve
simulate`: the services' own settings with their defaults, but for what the run says, and for the limit on first tokens,
which is the one that the figures ask for.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from evaluation.measures import TTFT_LIMIT_S, measure
from evaluation.systems import RESERVING
from evaluation.values import BEST_FORM, CapacityOf, Lengths, Measured, Run, Server, System
from services.experiments.cases import CAPACITY_BATCHES, CAPACITY_JOBS, simulated_jobs
from services.experiments.named_profiles import find_profile
from services.experiments.simulated_server import SimulateSettings
from services.experiments.simulated_server import server_setup as simulated_server
from services.runtime.profile_file import Profile
from services.runtime.settings import resolve
from services.simulator.fcfs_capacity import FCFS_FORMS, fcfs_capacity_per_s, never_short
from services.simulator.server_setup import ServerSetup
from services.simulator.simulation import simulate
from services.workloads.workload import TraceJob, Workload, make_trace, scale_arrivals

_CAPACITY_SEED = 1_000_003
"""No seed of a run: the jobs that tell the capacity are others than those that are measured."""

OnProgress = Callable[[int], None]
_profile = lru_cache(find_profile)


def server_setup(server: Server, system: System) -> ServerSetup:
    """The server as the simulator takes it. Raises InvalidFieldError for a profile that is not a whole server's."""
    profile: Profile = _profile(server.profile)
    values: dict[str, object] = {
        "policy": system.policy,
        "kv_policy": system.kv_policy,
        "kv_idle_slots": system.idle_slots,
        "prefill_chunk": system.prefill_chunk_tokens,
        "starvation_limit": system.starvation_limit_s,
        "quantum_ratio": system.quantum_ratio,
        "charge": system.charge,
        "first_token_limit": TTFT_LIMIT_S,
        "max_batch": server.max_batch,
        "pp": server.stages,
        "kv_device_tokens": server.device_tokens,
        "kv_host_tokens": server.host_tokens,
        "max_model_len": server.max_model_len,
    }
    return simulated_server(resolve(SimulateSettings, "simulate", values, {}), profile)


def _trace(lengths: Lengths, jobs: int, cv: float, rate_per_s: float, seed: int) -> Sequence[TraceJob]:
    workload = Workload(
        jobs=jobs,
        rate=rate_per_s,
        cv=cv,
        theta=lengths.theta or 0.0,
        max_prompt_tokens=lengths.max_prompt_tokens,
        max_output_tokens=lengths.max_output_tokens,
        seed=seed,
        kind=lengths.kind,
    )
    return scale_arrivals(make_trace(workload, stratified=True), rate_per_s)


def capacity_jobs(of: CapacityOf) -> int:
    """How many jobs tell a capacity."""
    return max(CAPACITY_JOBS, CAPACITY_BATCHES * of.server.max_batch)


def capacity_per_s(of: CapacityOf, on_progress: OnProgress | None = None) -> float:
    """Jobs a second that FCFS serves of these lengths."""
    trace = _trace(of.lengths, capacity_jobs(of), 0.0, 1.0, _CAPACITY_SEED)
    return fcfs_capacity_per_s(server_setup(of.server, RESERVING), simulated_jobs(trace), on_progress)


def simulate_run(run: Run, capacity: float, on_progress: OnProgress | None = None) -> Measured:
    """The numbers of a run on a server of which FCFS serves `capacity` jobs per second."""
    traffic = run.traffic
    rate = traffic.rate_per_s if traffic.load is None else traffic.load * capacity
    assert rate is not None, "traffic has a load or a rate"
    jobs = simulated_jobs(_trace(traffic.lengths, traffic.jobs, traffic.cv, rate, run.seed))
    best: Measured | None = None
    for form in forms_of(run.system):
        setup = server_setup(run.server, replace(run.system, kv_policy=form))
        simulation = simulate(setup, jobs, on_progress)
        measured = Measured(capacity, rate, measure(simulation, setup.kv_bytes_per_token), form)
        if best is None or measured.numbers["jct_s.mean"] < best.numbers["jct_s.mean"]:
            best = measured
        if never_short(setup, jobs, simulation):
            break
    assert best is not None, "a system has a form"
    return best


def forms_of(system: System) -> Sequence[str]:
    """The KV policies of which the best is looked for."""
    return FCFS_FORMS if system.kv_policy == BEST_FORM else (system.kv_policy,)
