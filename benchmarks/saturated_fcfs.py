"""What FCFS in its best form sustains on this machine, live, and a bursty trace whose load is relative to that."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.servers import bench, demand_no_failures, records, trace_server, write_trace
from benchmarks.settings import BenchSettings
from services.simulator.fcfs_capacity import FCFS_FORMS
from services.workloads.calibration import LoadedTrace, Need, loaded_trace, sustained_rate
from services.workloads.job_records import JobRecord
from services.workloads.workload import Workload, make_trace


@dataclass(frozen=True, slots=True)
class CalibratedTrace:
    """A trace, its file and the file of the warm-up; `sustained` are jobs per second under each form of FCFS."""

    sustained: dict[str, float]
    loaded: LoadedTrace
    file: Path
    warm_up: Path

    def told(self) -> dict[str, Any]:
        """The trace in the content of a part."""
        return {
            "sustained_by_fcfs_jobs_per_s": round(max(self.sustained.values()), 3),
            "sustained_by_form_jobs_per_s": {form: round(rate, 3) for form, rate in self.sustained.items()},
            "rate_jobs_per_s": round(self.loaded.rate, 3),
            "jobs": len(self.loaded.jobs),
            "span_s": round(self.loaded.jobs[-1].arrival_s, 2),
            "cv": round(self.loaded.cv, 2),
            "peak_need_tokens": self.loaded.peak_need_tokens,
        }


def job_records(out: Path) -> list[JobRecord]:
    """The jobs of a trace run as far as calibration needs them; gaps between tokens are taken as equal."""
    made = []
    for job in records(out):
        record = JobRecord(job["id"], job["arrival_s"], job["prompt_tokens"], error=job["error"])
        first_s, last_s, count = job["first_token_s"], job["last_token_s"], job["output_tokens"]
        if first_s is not None:
            record.add_tokens(1, first_s)
            for number in range(1, count):
                record.add_tokens(1, first_s + (last_s - first_s) * number / (count - 1))
        made.append(record)
    return made


async def calibrated_trace(
    settings: BenchSettings, name: str, shape: Workload, need: Need, flags: Callable[[str, str], list[str]]
) -> CalibratedTrace:
    """Saturates a server under each form of FCFS, and makes the trace that loads the best of them as asked. `name` is
    that of the part, `flags` are those of `fastserve up` for a policy and a KV policy.
    """
    traces = settings.folder("traces")
    sizes = {"warm-up": settings.pick(30, 10), "saturating": settings.pick(shape.jobs, 60)}
    warm_up, saturating = (
        write_trace(traces / f"{name}-{kind}.jsonl", make_trace(replace(shape, jobs=jobs), stratified=True))
        for kind, jobs in sizes.items()
    )
    sustained: dict[str, float] = {}
    for form in FCFS_FORMS:
        server_name = f"{name}-saturated-{form}"
        out = settings.folder("raw", server_name)
        async with trace_server(settings, server_name, flags("fcfs", form), warm_up) as ready:
            demand_no_failures(await bench(ready, saturating, out, "--time-scale", "0"), out)
        sustained[form] = sustained_rate(job_records(out))
    loaded = loaded_trace(shape, max(sustained.values()), need)
    return CalibratedTrace(sustained, loaded, write_trace(traces / f"{name}.jsonl", loaded.jobs), warm_up)
