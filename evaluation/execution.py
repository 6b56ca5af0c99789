"""Runs the simulations of an evaluation over the cores: first the capacities, then the runs, each distinct one once.

The runs that take longest are first, so that no core ends with a long one alone. Those that were finished earlier, by
the same code, are not run again.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol

from evaluation.finished_runs import FinishedRuns, Kept
from evaluation.simulating import OnProgress, capacity_jobs, capacity_per_s, simulate_run
from evaluation.values import CapacityOf, Measured, Run
from services.experiments.processes import over_processes
from services.runtime.command_line import CommandError
from services.simulator.simulation import StuckError
from services.workloads.workload import WorkloadKind

LINE_PERIOD_S = 15.0

_OUTPUT_TOKENS = {
    WorkloadKind.SHAREGPT: 340.0,
    WorkloadKind.ZIPF: 100.0,
    WorkloadKind.ALPACA: 60.0,
}
"""About so many a job: enough to tell long runs from short ones."""

RunTask = tuple[Run, float, Kept]


class Progress(Protocol):
    """Where the work stands: so much of `total` is done of what `title` names."""

    def __call__(self, title: str, done: int, total: int) -> None: ...


def expected_iterations(run: Run) -> float:
    """What runs are ordered by."""
    return run.traffic.jobs * _OUTPUT_TOKENS[run.traffic.lengths.kind] / run.server.max_batch


def _capacity_task(of: CapacityOf, told: OnProgress) -> float:
    return capacity_per_s(of, told)


def _run_task(task: RunTask, told: OnProgress) -> Measured:
    """Raises CommandError for a server that gets stuck."""
    run, capacity, kept = task
    try:
        measured = simulate_run(run, capacity, told)
    except StuckError as error:
        story = kept.write_story(str(error))
        raise CommandError(
            f"{run.system.label} on {run.server.profile} got stuck; {story} tells who waits for what: {error.reason}"
        ) from error
    kept.write(measured)
    return measured


def _telling(progress: Progress, title: str, total: int, before: int = 0) -> Callable[[Sequence[int]], None]:
    return lambda done: progress(title, before + sum(done), total)


def execute(runs: Iterable[Run], finished: FinishedRuns, processes: int, progress: Progress) -> Mapping[Run, Measured]:
    """Every distinct run, simulated; in an order that depends on the runs alone."""
    distinct = sorted(dict.fromkeys(runs), key=lambda run: -expected_iterations(run))
    kept = {run: finished.kept(run) for run in distinct}
    measured = {run: before for run in distinct if (before := kept[run].read()) is not None}
    left = [run for run in distinct if run not in measured]
    servers = list(dict.fromkeys(CapacityOf(run.server, run.traffic.lengths) for run in left))
    saturating = sum(map(capacity_jobs, servers))
    told = _telling(progress, "what FCFS can serve, jobs", saturating)
    capacities = dict(zip(servers, over_processes(_capacity_task, servers, processes, told), strict=True))
    tasks = [(run, capacities[CapacityOf(run.server, run.traffic.lengths)], kept[run]) for run in left]
    jobs_before = sum(run.traffic.jobs for run in measured)
    jobs = jobs_before + sum(run.traffic.jobs for run in left)
    told = _telling(progress, f"{len(distinct)} simulations, jobs", jobs, jobs_before)
    measured |= zip(left, over_processes(_run_task, tasks, processes, told), strict=True)
    return {run: measured[run] for run in distinct}


class LineProgress:
    """A line on stderr now and then, for logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = clock()
        self._due_s = self._start_s + LINE_PERIOD_S

    def __call__(self, title: str, done: int, total: int) -> None:
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + LINE_PERIOD_S
            print(f"{title}: {done}/{total}, {now_s - self._start_s:.0f} s", file=sys.stderr, flush=True)


class BarProgress:
    """Live bars on a terminal, as long as the context lasts."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        self._bars = Bars(*columns, console=Console(stderr=True), expand=True)

    def __enter__(self) -> "BarProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, title: str, done: int, total: int) -> None:
        task = next((task.id for task in self._bars.tasks if task.description == title), None)
        if task is None:
            task = self._bars.add_task(title, total=total)
        self._bars.update(task, completed=done)
