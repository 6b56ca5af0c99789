"""The cases to simulate: the points of a sweep, the policies compared at each, the seeds of each of these. Pure.

Every case is a separate simulation and contains all it depends on, so neither the order in which cases run nor the
processes that run them can change a figure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.domain.errors import InvalidFieldError
from services.domain.submission import client_number_of
from services.experiments.simulated_server import (
    SimulatedServerSettings,
    changed,
    default_policies,
    server_setup,
    shown,
)
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.runtime.profile_file import Profile
from services.scheduler.scheduler_config import LengthPredictor, PolicyName
from services.simulator.fcfs_capacity import fcfs_setup
from services.simulator.server_setup import ServerSetup, SimulatedJob
from services.workloads.any_workload import AnyWorkload, TraceFile, trace_of, workload_as_json
from services.workloads.workload import TraceJob, WorkloadKind, make_trace, wrong_with

MOST_CASES = 2000
MOST_POINTS = 200
CAPACITY_JOBS = 300
CAPACITY_BATCHES = 10
"""A saturated run has at least CAPACITY_JOBS jobs and at least CAPACITY_BATCHES full batches."""
_CAPACITY_SEED = 1_000_003

_OF_WORKLOAD = ("rate", "cv", "theta", "ratio")
_OF_SERVER = ("kv-device-tokens", "kv-host-tokens", "groups", "max-batch")
AXES = (*_OF_WORKLOAD, *_OF_SERVER)
_MOST_IN_FULL = 1e15


@dataclass(frozen=True, slots=True)
class PolicyPair:
    """A policy and a KV policy."""

    policy: PolicyName
    kv_policy: str

    @property
    def name(self) -> str:
        """Its name in results."""
        return f"{self.policy}+{self.kv_policy}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """One axis and its values."""

    axis: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of a sweep, or the only point if `axis` is empty."""

    axis: str = ""
    value: float = 0.0

    @property
    def shown(self) -> str:
        """The value in full: different values are never shown alike."""
        return str(int(self.value)) if self.value.is_integer() and self.value < _MOST_IN_FULL else repr(self.value)

    @property
    def name(self) -> str:
        """Its name in results and of its folder: `rate=4`."""
        return f"{self.axis}={self.shown}" if self.axis else ""


@dataclass(frozen=True, slots=True)
class SimulationCase:
    """One simulation. `config` goes into its result."""

    point: SweepPoint
    variant: PolicyPair
    seed: int
    setup: ServerSetup
    workload: AnyWorkload
    config: dict[str, object]
    time_scale: float = 1.0

    @property
    def jobs(self) -> list[SimulatedJob]:
        """The jobs that arrive at the server. One that foresees lengths is not told them."""
        jobs = simulated_jobs(trace_of(self.workload), self.time_scale)
        is_off = self.setup.scheduler.length_predictor is LengthPredictor.OFF
        return jobs if is_off else with_equal_limits(jobs, self.setup)

    @property
    def ids(self) -> Sequence[str]:
        """The jobs' ids in results, in the same order: those of a trace, which need not differ."""
        workload = self.workload
        if isinstance(workload, TraceFile):
            return [job.job_id for job in workload.jobs]
        return [str(number) for number in range(workload.jobs)]

    @property
    def rate_per_s(self) -> float | None:
        """Requested arrivals per second, None if all come at once. A bursty sample may have another rate."""
        workload = self.workload
        rate = realised_rate_per_s(workload.jobs) if isinstance(workload, TraceFile) else workload.rate
        if isinstance(workload, TraceFile) and workload.rate is not None:
            rate = workload.rate
        return rate / self.time_scale if rate is not None and self.time_scale > 0 else None


def simulated_jobs(trace: Sequence[TraceJob], time_scale: float = 1.0) -> list[SimulatedJob]:
    """A trace as the simulator takes it. Ids are numbers: those of a trace file need not differ."""
    return [
        SimulatedJob(
            str(number),
            job.arrival_s * time_scale,
            job.prompt_tokens,
            job.output_tokens,
            client_number=client_number_of(job.client),
        )
        for number, job in enumerate(trace)
    ]


def with_equal_limits(jobs: Sequence[SimulatedJob], setup: ServerSetup) -> list[SimulatedJob]:
    """The jobs with a max_tokens that says nothing about their length: the longest output of all, as far as the prompt
    leaves room for it. The jobs of a trace would ask for exactly as many tokens as they make.
    """
    longest = max(job.output_tokens for job in jobs)
    room = min(setup.max_model_len, setup.device_blocks * setup.block_size)
    return [replace(job, max_tokens=max(job.output_tokens, min(longest, room - job.prompt_tokens))) for job in jobs]


def realised_rate_per_s(jobs: Sequence[SimulatedJob] | Sequence[TraceJob]) -> float | None:
    """Arrivals per second from the first job to the last, in order; None if all come at once."""
    span_s = jobs[-1].arrival_s - jobs[0].arrival_s
    return (len(jobs) - 1) / span_s if span_s > 0 else None


def parse_variants(text: str | None, settings: SimulatedServerSettings) -> tuple[PolicyPair, ...]:
    """Parses `POLICY[/KV],...`; what is left out comes from the settings. Raises InvalidFieldError."""
    own = PolicyPair(*default_policies(settings))
    if text is None:
        return (own,)
    variants: list[PolicyPair] = []
    for part in text.split(","):
        policy, _, kv_policy = part.strip().partition("/")
        kv_policy = kv_policy or own.kv_policy
        if policy not in set(PolicyName):
            raise InvalidFieldError("--compare", f"'{policy}' is not a policy; policies are {', '.join(PolicyName)}")
        if kv_policy not in KV_POLICY_NAMES:
            raise InvalidFieldError(
                "--compare", f"'{kv_policy}' is not a KV policy; KV policies are {', '.join(KV_POLICY_NAMES)}"
            )
        variant = PolicyPair(PolicyName(policy), kv_policy)
        if variant in variants:
            raise InvalidFieldError("--compare", f"{policy}/{kv_policy} is named twice")
        variants.append(variant)
    return tuple(variants)


def parse_sweep(text: str) -> Sweep:
    """`AXIS=a,b,c` or `AXIS=low:high:count`. Raises InvalidFieldError."""
    axis, equals, values_text = text.partition("=")
    if not equals or axis not in AXES:
        raise InvalidFieldError("--sweep", f"must be AXIS=VALUES, where AXIS is one of {', '.join(AXES)}")
    try:
        values = _range(values_text) if ":" in values_text else tuple(float(part) for part in values_text.split(","))
    except ValueError:
        raise InvalidFieldError("--sweep", f"'{values_text}' is neither a,b,c nor low:high:count") from None
    if axis in _OF_SERVER:
        values = tuple(float(round(value)) if math.isfinite(value) else value for value in values)
    if not all(0 <= value < math.inf for value in values) or len(set(values)) != len(values):
        raise InvalidFieldError("--sweep", "values must be finite, 0 or more, and all different")
    if axis in _OF_WORKLOAD:
        for value in values:
            if (wrong := wrong_with(axis, value)) is not None:
                raise InvalidFieldError("--sweep", f"{axis} {wrong}")
    if len(values) > MOST_POINTS:
        raise InvalidFieldError("--sweep", f"has more than {MOST_POINTS} values")
    return Sweep(axis, values)


def _range(text: str) -> tuple[float, ...]:
    low_text, high_text, count_text = text.split(":")
    low, high, count = float(low_text), float(high_text), int(count_text)
    if not 2 <= count <= MOST_POINTS:
        raise InvalidFieldError("--sweep", f"count must be from 2 to {MOST_POINTS}, got {count}")
    return tuple(low + (high - low) * number / (count - 1) for number in range(count))


def parse_seeds(text: str) -> tuple[int, ...]:
    """`a,b,c`. Raises InvalidFieldError."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidFieldError("--seed", f"must be whole numbers separated by commas, got '{text}'") from None
    if len(set(seeds)) != len(seeds):
        raise InvalidFieldError("--seed", "seeds must all be different")
    return seeds


def cases(
    profile: Profile,
    settings: SimulatedServerSettings,
    workload: AnyWorkload,
    variants: Sequence[PolicyPair],
    sweep: Sweep | None,
    seeds: Sequence[int],
    time_scale: float = 1.0,
) -> list[SimulationCase]:
    """All cases: points outermost, then variants, then seeds. Raises InvalidFieldError."""
    points = [SweepPoint()] if sweep is None else [SweepPoint(sweep.axis, value) for value in sweep.values]
    count = len(points) * len(variants) * len(seeds)
    if count > MOST_CASES:
        raise InvalidFieldError("--sweep", f"asks for {count} simulations, must be at most {MOST_CASES}")
    made = _cases(profile, settings, workload, variants, points, seeds)
    return [replace(case, time_scale=time_scale, config=case.config | {"time_scale": time_scale}) for case in made]


def _cases(
    profile: Profile,
    settings: SimulatedServerSettings,
    workload: AnyWorkload,
    variants: Sequence[PolicyPair],
    points: Sequence[SweepPoint],
    seeds: Sequence[int],
) -> Iterator[SimulationCase]:
    for point in points:
        at_point = settings
        if point.axis in _OF_SERVER:
            at_point = changed(settings, **{point.axis.replace("-", "_"): int(point.value)})
        for variant in variants:
            of_variant = changed(at_point, policy=variant.policy, kv_policy=variant.kv_policy)
            setup = server_setup(of_variant, profile)
            for seed in seeds:
                placed = _placed(replace(workload, seed=seed), point)
                config: dict[str, object] = {
                    "workload": workload_as_json(placed),
                    "profile": profile.name,
                    "policy": str(variant.policy),
                    "kv_policy": variant.kv_policy,
                    "server": shown(of_variant) | {"max_batch": setup.scheduler.max_batch},
                    "groups": [_pools(setup, number) for number in range(setup.groups)],
                }
                yield SimulationCase(point, variant, seed, setup, placed, config)


def _pools(setup: ServerSetup, group: int) -> dict[str, object]:
    return {
        "group": group,
        "device": "simulated",
        "block_size": setup.block_size,
        "kv_device_tokens": setup.device_blocks * setup.block_size,
        "kv_host_tokens": setup.host_blocks * setup.block_size,
        "stages": setup.stages,
    }


def _placed(workload: AnyWorkload, point: SweepPoint) -> AnyWorkload:
    """The workload at a point of a sweep."""
    if point.axis not in _OF_WORKLOAD:
        return workload
    if isinstance(workload, TraceFile):
        if point.axis != "rate":
            raise InvalidFieldError("--sweep", f"{point.axis} applies to generated workloads, not to a trace")
        return replace(workload, rate=point.value)
    needed = {"theta": (WorkloadKind.ZIPF, WorkloadKind.RATIO), "ratio": (WorkloadKind.RATIO,)}.get(point.axis)
    if needed is not None and workload.kind not in needed:
        raise InvalidFieldError("--sweep", f"{point.axis} does not apply to --workload {workload.kind}")
    fields: dict[str, float] = {point.axis: point.value}
    return replace(workload, **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class CapacityOf:
    """What the capacity of FCFS depends on, in its best form: one group of a server, without its policies, and lengths
    of jobs.
    """

    setup: ServerSetup
    lengths: tuple[tuple[int, int], ...]

    @property
    def jobs(self) -> list[SimulatedJob]:
        """Jobs of these lengths that all arrive at once."""
        return [SimulatedJob(str(number), 0.0, *length) for number, length in enumerate(self.lengths)]


def capacity_of(case: SimulationCase) -> CapacityOf:
    """What the load of a case is relative to, for one of its groups; equal for cases that share it. The sample of
    lengths is the same for all seeds: a stratified draw from the distributions, or every n-th job of a trace.
    """
    workload = case.workload
    count = max(CAPACITY_JOBS, CAPACITY_BATCHES * case.setup.scheduler.max_batch)
    if isinstance(workload, TraceFile):
        sample = list(workload.jobs[:: -(-len(workload.jobs) // count)])
    else:
        plain = replace(workload, jobs=count, rate=1.0, cv=0.0, seed=_CAPACITY_SEED)
        sample = make_trace(plain, stratified=True)
    one_group = fcfs_setup(replace(case.setup, groups=1), ())
    return CapacityOf(one_group, tuple((job.prompt_tokens, job.output_tokens) for job in sample))
