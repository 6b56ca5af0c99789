"""`fastserve figures`: the papers' evaluation, from the code that serves (behind `make figures`)."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from evaluation.catalogue import FIGURES
from evaluation.drawing import draw, gaps_of, gaps_owner
from evaluation.evaluation import Evaluation
from evaluation.execution import BarProgress, LineProgress, Progress, execute
from evaluation.finished import Finished, code_digest
from evaluation.report_text import report
from evaluation.tables import table
from evaluation.values import FULL, MAIN, QUICK, Figure, Scale
from services.domain.errors import InvalidFieldError
from services.experiments.processes import over_processes
from services.runtime.command_line import CommandError, ExitCode, parser, positive_int
from services.runtime.output_folder import make_writable
from services.workloads.job_records import write_lines

DEFAULT_OUT = Path("docs/evaluation")
DEFAULT_OUT_OF_SOME = Path("out/evaluation")
"""With --only, so that no report of all figures gives way to one of a few."""
DEFAULT_FINISHED = Path("out/figures")

DrawTask = tuple[Evaluation, tuple[Figure, ...], Path]


def evaluate(
    figures: Sequence[Figure], scale: Scale, finished: Finished, processes: int, progress: Progress
) -> Evaluation:
    """Run all that the figures need, each run once."""
    runs = [run for figure in figures for run in figure.runs(scale)]
    return Evaluation(scale, tuple(figures), execute(runs, finished, processes, progress))


def _draw_task(task: DrawTask, told: Callable[[int], None]) -> None:
    evaluation, figures, out = task
    for drawn in figures:
        draw(evaluation, drawn, out)
    told(1)


def _drawings(evaluation: Evaluation, out: Path) -> Iterator[DrawTask]:
    """A figure, and the picture of its gaps where no other figure has the same; each with its own runs only."""
    for figure in evaluation.figures:
        measured = {run: evaluation.measured[run] for run in figure.runs(evaluation.scale)}
        own = gaps_owner(figure, evaluation.figures) is figure
        drawn = (figure, gaps_of(figure)) if own else (figure,)
        yield (Evaluation(evaluation.scale, (figure,), measured), drawn, out)


def write(evaluation: Evaluation, out: Path, processes: int, progress: Progress) -> None:
    """Pictures, tables and the report."""
    out.mkdir(parents=True, exist_ok=True)
    for figure in evaluation.figures:
        write_lines(out / f"{figure.name}.csv", table(evaluation, figure).splitlines())
    write_lines(out / "REPORT.md", report(evaluation).splitlines())
    drawings = list(_drawings(evaluation, out))
    over_processes(_draw_task, drawings, processes, lambda done: progress("figures drawn", sum(done), len(drawings)))


def chosen(only: str | None) -> tuple[Figure, ...]:
    """The figures whose names begin with one of those given, separated by commas. Raises CommandError for one that is
    no beginning of any.
    """
    if only is None:
        return FIGURES
    prefixes = [prefix for prefix in only.split(",") if prefix]
    unknown = [prefix for prefix in prefixes if not any(figure.name.startswith(prefix) for figure in FIGURES)]
    if unknown or not prefixes:
        names = ", ".join(figure.name for figure in FIGURES)
        raise CommandError(f"--only: no figure begins with '{', '.join(unknown)}'; there are {names}", ExitCode.REFUSED)
    return tuple(figure for figure in FIGURES if any(figure.name.startswith(prefix) for prefix in prefixes))


def _parser() -> argparse.ArgumentParser:
    made = parser("figures", "Simulate the papers' evaluation; writes pictures, tables and REPORT.md.")
    size = made.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help=f"a look: {QUICK.jobs} jobs a run, few points")
    size.add_argument(
        "--full", action="store_true", help=f"{FULL.jobs} jobs a run, {len(FULL.seeds)} seeds, all points"
    )
    made.add_argument(
        "--only", metavar="NAME,...", help="the figures whose names begin so; REPORT.md tells of these alone"
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where to write, a REPORT.md there is replaced [{DEFAULT_OUT}; with --only {DEFAULT_OUT_OF_SOME}]",
    )
    made.add_argument(
        "--finished",
        type=Path,
        default=DEFAULT_FINISHED,
        metavar="DIR",
        help=f"where each simulation's numbers are kept, so that an interrupted command goes on [{DEFAULT_FINISHED}]",
    )
    cores = len(os.sched_getaffinity(0))
    made.add_argument(
        "--processes", type=positive_int, default=cores, help=f"simulations at a time [all cores: {cores}]"
    )
    return made


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    arguments = _parser().parse_args(argv)
    figures = chosen(arguments.only)
    out: Path = arguments.out or (DEFAULT_OUT if arguments.only is None else DEFAULT_OUT_OF_SOME)
    scale = QUICK if arguments.quick else FULL if arguments.full else MAIN
    bar = BarProgress() if sys.stderr.isatty() else None
    progress: Progress = bar or LineProgress()
    try:
        with bar or nullcontext():
            make_writable(out)
            finished = Finished(arguments.finished, code_digest())
            evaluation = evaluate(figures, scale, finished, arguments.processes, progress)
            write(evaluation, out, arguments.processes, progress)
    except (InvalidFieldError, OSError) as error:
        raise CommandError(str(error)) from error
    print(f"written to {out}")
    return ExitCode.OK
