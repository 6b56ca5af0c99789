"""A workload that is generated, or read from a trace file."""

from dataclasses import asdict, dataclass

from services.workloads.workload import (
    TraceJob,
    Workload,
    WorkloadKind,
    make_trace,
    scale_arrivals,
)

FIGURES_WITHOUT = {
    WorkloadKind.ZIPF: ("ratio",),
    WorkloadKind.RATIO: (),
    WorkloadKind.SHAREGPT: ("theta", "ratio"),
    WorkloadKind.ALPACA: ("theta", "ratio"),
}


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A workload read from a file. `rate`: arrivals per second that it is stretched to; None: left as it is."""

    path: str
    jobs: tuple[TraceJob, ...]
    seed: int
    rate: float | None = None


AnyWorkload = Workload | TraceFile


def trace_of(workload: AnyWorkload) -> list[TraceJob]:
    """The jobs of a workload, in order of arrival."""
    if isinstance(workload, Workload):
        return make_trace(workload)
    return list(workload.jobs) if workload.rate is None else scale_arrivals(workload.jobs, workload.rate)


def workload_as_json(workload: AnyWorkload) -> dict[str, object]:
    """The workload as `result.json` shows it."""
    if isinstance(workload, TraceFile):
        rate = {} if workload.rate is None else {"rate": workload.rate}
        return {"trace": workload.path, **rate, "seed": workload.seed}
    fields = {
        name: value for name, value in asdict(workload).items() if name not in (*FIGURES_WITHOUT[workload.kind], "kind")
    }
    return {"workload": str(workload.kind), **fields}
