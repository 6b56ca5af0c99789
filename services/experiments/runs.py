"""One simulation, from a case to its figures and files: the body of a process. The files are those of `bench`, and
contain only what follows from the case: no dates, no names of machines.

A server may get stuck: some policies, together with some KV policies, move jobs in and out for ever (PAPER 7). That is
a result too, written to a file of its own in place of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from services.experiments.cases import CapacityOf, SimulationCase, realised_rate_per_s
from services.simulator.fcfs_capacity import fcfs_capacity_per_s
from services.simulator.simulation import JobOutcome, Simulation, StuckError, simulate
from services.workloads.job_records import JobRecord, distribution, result, write_lines, write_result_files

Content = dict[str, object]
_ENDED_WELL = ("length", "stop")
_STUCK_FILE = "stuck.txt"
_STORY_JOBS = "Jobs are named by their position in the order of arrival, counted from 0."


@dataclass(frozen=True, slots=True)
class Stuck:
    """A simulation that got stuck. `story`: the file that says which job waits for what."""

    reason: str
    story: Path


def record_of(outcome: JobOutcome) -> JobRecord:
    """An outcome as the record of a trace run."""
    times_s = outcome.token_times_s
    error = outcome.error
    if error is None and outcome.finish_reason not in _ENDED_WELL:
        error = f"ended as {outcome.finish_reason or 'nothing'}"
    record = JobRecord(
        job_id=outcome.job_id,
        arrival_s=outcome.arrival_s,
        prompt_tokens=outcome.prompt_tokens,
        output_tokens=len(times_s),
        finish_reason=outcome.finish_reason or None,
        preemptions=outcome.preemptions,
        error=error,
    )
    if times_s:
        record.first_token_s, record.last_token_s = times_s[0], times_s[-1]
        record.gaps_s.extend(later - sooner for sooner, later in pairwise(times_s))
    return record


def _only_simulated(simulation: Simulation) -> Content:
    """Figures that a live trace run can't measure."""
    good = [outcome for outcome in simulation.outcomes if outcome.error is None]
    return {
        "queue_s": distribution([outcome.queue_s for outcome in good]),
        "executing_s": distribution([outcome.executing_s for outcome in good]),
        "uploading_s": distribution([outcome.uploading_s for outcome in good]),
        "swap_s": round(simulation.swap_s, 6),
        "swap_exposed_s": round(simulation.swap_exposed_s, 6),
        "peak_kv_tokens": simulation.peak_kv_tokens,
        "peak_device_kv_tokens": simulation.peak_device_kv_tokens,
    }


def run_case(
    case: SimulationCase, capacity_per_s: float | None, folder: Path, on_progress: Callable[[int], None] | None = None
) -> Content | Stuck:
    """Simulates, writes `result.json` and `jobs.jsonl` into `folder`, returns the result's content or why it got stuck.
    What an earlier run left there of the other kind is removed.
    """
    jobs = case.jobs
    try:
        simulation = simulate(case.setup, jobs, on_progress)
    except StuckError as error:
        for name in ("result.json", "jobs.jsonl"):
            (folder / name).unlink(missing_ok=True)
        return write_stuck(error, folder)
    (folder / _STUCK_FILE).unlink(missing_ok=True)
    config = dict(case.config)
    if capacity_per_s is not None:
        config["fcfs_capacity_per_s"] = round(capacity_per_s, 6)
        config["load"] = None if case.rate_per_s is None else round(case.rate_per_s / capacity_per_s, 6)
    realised_per_s = realised_rate_per_s(jobs)
    config["arrivals_per_s"] = None if realised_per_s is None else round(realised_per_s, 6)
    records = [record_of(outcome) for outcome in simulation.outcomes]
    for record, job_id in zip(records, case.ids, strict=True):
        record.job_id = job_id
    content = result(config, records, simulation.counters) | {"simulated": _only_simulated(simulation)}
    write_result_files(folder, content, records)
    return content


def write_stuck(error: StuckError, folder: Path) -> Stuck:
    """Write its story into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / _STUCK_FILE, [_STORY_JOBS, *str(error).splitlines()])
    return Stuck(error.reason, folder / _STUCK_FILE)


def measure_capacity(of: CapacityOf, on_progress: Callable[[int], None] | None = None) -> float:
    """Jobs per second that FCFS in its best form sustains. Raises StuckError if it gets stuck in every form."""
    return fcfs_capacity_per_s(of.setup, of.jobs, on_progress)
