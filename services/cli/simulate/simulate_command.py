"""`fastserve simulate`: the same policies on a virtual clock. Which policy, how many groups, how much host memory for
this trace?

Load is relative to what FCFS in its best form sustains, which is simulated first. A single simulation writes
`result.json` and `jobs.jsonl` into --out, as `bench` does; several write theirs into one folder each, and `summary.csv`
above them. One that gets stuck writes `stuck.txt` instead and fails the command once all others have ended.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.cli.simulate.simulation_table import WIDE_COLUMNS, SimulatedRun, summary_csv, table
from services.cli.workload_flags import add_workload, chosen_workload
from services.domain.errors import InvalidFieldError
from services.experiments.cases import (
    AXES,
    CapacityOf,
    SimulationCase,
    capacity_of,
    cases,
    parse_seeds,
    parse_sweep,
    parse_variants,
)
from services.experiments.named_profiles import find_profile, profile_names
from services.experiments.processes import OnProgress, over_processes
from services.experiments.runs import Content, Stuck, measure_capacity, run_case, write_stuck
from services.experiments.simulated_server import FLAGS, SimulatedServerSettings, SimulateSettings
from services.runtime.command_line import CommandError, ExitCode, not_negative_float, parser, positive_int
from services.runtime.output_folder import make_writable
from services.runtime.settings import add_flags, resolve
from services.simulator.simulation import StuckError
from services.workloads.any_workload import TraceFile
from services.workloads.job_records import write_lines

DEFAULT_PROFILE = "opt-13b-a100-40gb"
MOST_SEEDS = 1000
_WIDTH = 160
"""Of tables that are not shown on a terminal."""

RunTask = tuple[SimulationCase, float | None, Path]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parser() -> argparse.ArgumentParser:
    made = parser(
        "simulate",
        "Run the policies that serve on a virtual clock; writes result.json and jobs.jsonl. Settings come from flags, "
        "FASTSERVE_* and the table [simulate] of --config.",
    )
    made.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="FILE|NAME",
        help=f"cost model and hardware: a file or one of {', '.join(profile_names())} [{DEFAULT_PROFILE}]",
    )
    add_workload(made, with_seed=False)
    made.add_argument(
        "--time-scale",
        type=not_negative_float,
        default=1.0,
        metavar="X",
        help="factor for arrival times; 0: all at once [1]",
    )
    seeds = made.add_mutually_exclusive_group()
    seeds.add_argument("--seed", default="0", metavar="A,B,C", help="seeds of lengths and arrivals [0]")
    seeds.add_argument("--seeds", type=positive_int, metavar="N", help="the seeds 0 to N - 1")
    made.add_argument("--compare", metavar="POLICY[/KV],...", help="policies to compare; KV defaults to --kv-policy")
    made.add_argument(
        "--sweep",
        metavar="AXIS=A,B,C|AXIS=LOW:HIGH:COUNT",
        help=f"repeat for each of these values; axes: {', '.join(AXES)}",
    )
    made.add_argument("--no-load", action="store_true", help="do not measure what FCFS sustains, and show no load")
    made.add_argument(
        "--processes",
        type=positive_int,
        default=_usable_cores(),
        metavar="N",
        help="simulations run at a time [all cores]",
    )
    made.add_argument(
        "--out", type=Path, default=Path("out/simulate"), metavar="DIR", help="folder for the results [out/simulate]"
    )
    add_flags(made, SimulateSettings)
    return made


def _settings(arguments: argparse.Namespace) -> SimulatedServerSettings:
    given = {name: value for name, value in vars(arguments).items() if name in (*FLAGS, "config")}
    return resolve(SimulateSettings, "simulate", given, os.environ)


def _seeds(arguments: argparse.Namespace) -> tuple[int, ...]:
    if arguments.seeds is None:
        return parse_seeds(arguments.seed)
    if arguments.seeds > MOST_SEEDS:
        raise InvalidFieldError("--seeds", f"must be at most {MOST_SEEDS}, got {arguments.seeds}")
    return tuple(range(arguments.seeds))


def asked(arguments: argparse.Namespace) -> list[SimulationCase]:
    """The cases that the command line asks for. Raises InvalidFieldError and CommandError."""
    settings, seeds = _settings(arguments), _seeds(arguments)
    profile = find_profile(arguments.profile)
    workload = chosen_workload(arguments, seeds[0])
    if isinstance(workload, TraceFile) and len(seeds) > 1:
        raise InvalidFieldError("--seeds", "must be one seed with --trace: a trace is the same for every seed")
    variants = parse_variants(arguments.compare, settings)
    sweep = None if arguments.sweep is None else parse_sweep(arguments.sweep)
    return cases(profile, settings, workload, variants, sweep, seeds, arguments.time_scale)


def folder_of(case: SimulationCase, of: Sequence[SimulationCase], out: Path) -> Path:
    """Where a case writes: `out` itself if it is the only one."""
    if len(of) == 1:
        return out
    parts = [case.point.name, case.variant.name, f"seed-{case.seed}"]
    return out.joinpath(*(part for part in parts if part))


def _capacity_task(of: CapacityOf, report: Callable[[int], None]) -> float:
    return measure_capacity(of, report)


def _run_task(task: RunTask, report: Callable[[int], None]) -> Content | Stuck:
    return run_case(*task, report)


def _capacities(of: Sequence[SimulationCase], processes: int) -> list[float | None]:
    """What FCFS in its best form sustains in each case, all groups together; equal ones are simulated once."""
    wanted = [capacity_of(case) for case in of]
    distinct = list(dict.fromkeys(wanted))
    with _progress("what FCFS sustains", [len(one.lengths) for one in distinct]) as on_progress:
        measured = over_processes(_capacity_task, distinct, processes, on_progress)
    per_group = dict(zip(distinct, measured, strict=True))
    return [per_group[one] * case.setup.groups for one, case in zip(wanted, of, strict=True)]


@contextmanager
def _progress(title: str, totals: Sequence[int]) -> Iterator[OnProgress]:
    """A bar over the jobs of all simulations, on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        TextColumn("{task.completed:.0f}/{task.total:.0f} jobs, {task.fields[runs]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=sum(totals), runs="")

        def on_progress(done: Sequence[int]) -> None:
            ended = sum(count >= total for count, total in zip(done, totals, strict=True))
            bar.update(task, completed=sum(done), runs=f"{ended} of {len(totals)} simulations ended")

        yield on_progress


def simulate_all(of: Sequence[SimulationCase], out: Path, processes: int, with_load: bool) -> list[SimulatedRun]:
    """Runs all cases, writes their files, and returns the results in the order of the cases. Raises OSError, and
    CommandError if FCFS gets stuck while its capacity is measured.
    """
    make_writable(out)
    try:
        capacities = _capacities(of, processes) if with_load else [None] * len(of)
    except StuckError as error:
        stuck = write_stuck(error, out)
        raise CommandError(
            f"FCFS got stuck while its capacity was measured: {stuck.reason}; see {stuck.story}"
        ) from error
    tasks = [(case, capacity, folder_of(case, of, out)) for case, capacity in zip(of, capacities, strict=True)]
    with _progress("simulating", [_job_count(case) for case in of]) as on_progress:
        contents = over_processes(_run_task, tasks, processes, on_progress)
    runs = [SimulatedRun(case, content) for case, content in zip(of, contents, strict=True)]
    if len(runs) > 1:
        write_lines(out / "summary.csv", summary_csv(runs))
    return runs


def _job_count(case: SimulationCase) -> int:
    return len(case.workload.jobs) if isinstance(case.workload, TraceFile) else case.workload.jobs


def main(argv: list[str] | None = None) -> int:
    """Runs the command. The exit code is 0 even if some jobs were refused (result.json says how many), 1 if all were,
    in all runs, or if a simulation got stuck.
    """
    arguments = _parser().parse_args(argv)
    try:
        runs = simulate_all(asked(arguments), arguments.out, arguments.processes, not arguments.no_load)
    except InvalidFieldError as error:
        raise CommandError(str(error), ExitCode.REFUSED) from error
    except OSError as error:
        raise CommandError(f"--out {arguments.out} can't be written: {error}", ExitCode.REFUSED) from error
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(table(runs, wide=console.width >= WIDE_COLUMNS))
    console.print(f"written to {arguments.out}", highlight=False, soft_wrap=True)
    stuck = [run.stuck for run in runs if run.stuck is not None]
    if stuck:
        raise CommandError(
            f"{len(stuck)} of {len(runs)} simulations got stuck; {stuck[0].story} says which job waits for what: "
            f"{stuck[0].reason}"
        )
    return ExitCode.FAILED if all(run.content["failed"] == run.content["jobs"] for run in runs) else ExitCode.OK
