"""The values of the evaluation: what is simulated (a Run) and what is drawn of it (a Figure).

A figure is a declaration. Each of its panels sweeps one axis for some systems, and stands for one Run per point, system
and seed. Two runs that are equal are the same simulation wherever they are declared, so figures share runs. Rates are
declared as loads: arrivals per second over what FCFS can serve of these lengths on this server. A load says
where queues build up, a rate alone does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from evaluation.ratio_lengths import largest_lengths
from services.scheduler.scheduler_config import Charge, PolicyName
from services.workloads.workload import WorkloadKind

DEFAULT_STARVATION_LIMIT_S = 10.0
BEST_FORM = "best"
"""Stands for a KV policy: that of services.simulator.fcfs_capacity.FCFS_FORMS under which the run's mean completion
time is least."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Distributions of prompt and output lengths, as workload.py knows them. `theta` is of ZIPF; `ratio`, of mean
    prompt to mean output, is told where the bounds were chosen for it.
    """

    kind: WorkloadKind
    theta: float | None = None
    ratio: float | None = None
    max_prompt_tokens: int = 1024
    max_output_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class Server:
    """One group. `profile` is a name under profiles; None takes what the profile says."""

    profile: str
    max_batch: int = 16
    device_tokens: int | None = None
    host_tokens: int | None = None
    stages: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What arrives: Gamma arrivals of a CV (1: Poisson), at a `load` or, where that is None, at `rate_per_s`."""

    lengths: Lengths
    cv: float = 1.0
    load: float | None = 0.9
    rate_per_s: float | None = None
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class System:
    """Who runs and where KV is: what the figures compare. `label` is what pictures and tables call it. `kv_policy` is
    one of the services', or BEST_FORM."""

    label: str
    policy: PolicyName
    kv_policy: str
    prefill_chunk_tokens: int | None = None
    starvation_limit_s: float | None = DEFAULT_STARVATION_LIMIT_S
    quantum_ratio: float = 2.0
    charge: Charge = Charge.WALL
    idle_slots: int = 4


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation."""

    server: Server
    system: System
    traffic: Traffic
    seed: int


@dataclass(frozen=True, slots=True)
class CapacityOf:
    """What must be known before runs at a load: the rate of jobs that FCFS can serve in its best form."""

    server: Server
    lengths: Lengths


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave. `numbers` holds every name of measures.NUMBERS. `kv_policy` is the one that was run: of a system
    in its best form, that form."""

    capacity_per_s: float
    rate_per_s: float
    numbers: dict[str, float]
    kv_policy: str

    @property
    def load(self) -> float:
        """Arrivals over FCFS's capacity."""
        return self.rate_per_s / self.capacity_per_s


class Axis(StrEnum):
    """What a panel sweeps."""

    LOAD = "load"
    RATE = "rate"
    CV = "cv"
    THETA = "theta"
    RATIO = "ratio"
    IDLE_SLOTS = "idle-slots"
    QUANTUM_RATIO = "quantum-ratio"
    STAGES = "stages"
    BATCH = "batch"

    def at(self, x: float, run: Run) -> Run:
        """The run with `x` in its place."""
        traffic, server, system = run.traffic, run.server, run.system
        match self:
            case Axis.LOAD:
                traffic = replace(traffic, load=x)
            case Axis.RATE:
                traffic = replace(traffic, load=None, rate_per_s=x)
            case Axis.CV:
                traffic = replace(traffic, cv=x)
            case Axis.THETA:
                traffic = replace(traffic, lengths=replace(traffic.lengths, theta=x))
            case Axis.RATIO:
                traffic = replace(traffic, lengths=_of_ratio(traffic.lengths, x))
            case Axis.IDLE_SLOTS:
                # Only the proactive policy looks at K: one run does for all points of the others.
                system = replace(system, idle_slots=int(x)) if system.kv_policy == "proactive" else system
            case Axis.QUANTUM_RATIO:
                system = replace(system, quantum_ratio=x) if system.policy in _WITH_QUANTA else system
            case Axis.STAGES:
                server = replace(server, stages=int(x))
            case Axis.BATCH:
                server = replace(server, max_batch=int(x))
        return Run(server, system, traffic, run.seed)


def _of_ratio(lengths: Lengths, ratio: float) -> Lengths:
    prompt_tokens, output_tokens = largest_lengths(ratio, lengths.theta or 0.0)
    return replace(lengths, ratio=ratio, max_prompt_tokens=prompt_tokens, max_output_tokens=output_tokens)


_WITH_QUANTA = (PolicyName.MLFQ, PolicyName.MLFQ_KILL, PolicyName.SKIP_JOIN_MLFQ)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a run as an axis: its name in `Measured.numbers`, how it is written, and its scale."""

    name: str
    label: str
    log: bool = True
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Points:
    """Ascending values of an axis: those of the main set, and those that only the full set adds."""

    main: tuple[float, ...]
    more: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run. `points` None takes all points, the full set's too; otherwise so many of the main ones."""

    name: str
    jobs: int
    seeds: tuple[int, ...]
    most_points: int | None
    full: bool

    def of(self, points: Points) -> tuple[float, ...]:
        """The values of an axis at this scale."""
        if self.full:
            return tuple(sorted({*points.main, *points.more}))
        if self.most_points is None or len(points.main) <= self.most_points:
            return points.main
        last = len(points.main) - 1
        picked = {round(place * last / (self.most_points - 1)) for place in range(self.most_points)}
        return tuple(points.main[place] for place in sorted(picked))


QUICK = Scale("quick", jobs=120, seeds=(0,), most_points=3, full=False)
MAIN = Scale("main", jobs=1000, seeds=(0,), most_points=None, full=False)
FULL = Scale("full", jobs=3000, seeds=(0, 1, 2), most_points=None, full=True)
CONCLUDED = MAIN
"""What is committed, and what the conclusions are about."""


class PanelKind(StrEnum):
    """How a panel is drawn: a line per system, or a bar per system that shows where a job's time goes."""

    LINES = "lines"
    TIME_SPLIT = "time-split"


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes of a figure. `limit` is a value of the metric that is drawn as a line (an SLO). Runs have
    `job_factor` times the jobs of the scale: where outputs are short but for a few, a thousand jobs are over before the
    longest of them is.
    """

    title: str
    axis: Axis
    points: Points
    server: Server
    traffic: Traffic
    systems: tuple[System, ...]
    metric: Metric
    limit: float | None = None
    kind: PanelKind = PanelKind.LINES
    job_factor: int = 1

    @property
    def sweep(self) -> tuple[object, ...]:
        """What its runs depend on: panels of one sweep draw the same runs."""
        return (self.axis, self.points, self.server, self.traffic, self.systems, self.job_factor)

    def run(self, scale: Scale, system: System, x: float, seed: int) -> Run:
        """The run of one point."""
        traffic = replace(self.traffic, jobs=scale.jobs * self.job_factor)
        return self.axis.at(x, Run(self.server, system, traffic, seed))

    def runs(self, scale: Scale) -> Iterator[Run]:
        """All that the panel needs."""
        for x in scale.of(self.points):
            for system in self.systems:
                for seed in scale.seeds:
                    yield self.run(scale, system, x, seed)


@dataclass(frozen=True, slots=True)
class Figure:
    """`name` is also that of its files; `shows` is the papers' figure. `columns` of panels a row in the picture."""

    name: str
    shows: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 3

    def panel(self, title: str) -> Panel:
        """The panel of this title."""
        return next(panel for panel in self.panels if panel.title == title)

    @property
    def sweeps(self) -> frozenset[tuple[object, ...]]:
        """Those that it draws as lines."""
        return frozenset(panel.sweep for panel in self.panels if panel.kind is PanelKind.LINES)

    def runs(self, scale: Scale) -> Iterator[Run]:
        """All that the figure needs, repeats among it."""
        for panel in self.panels:
            yield from panel.runs(scale)
