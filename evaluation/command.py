"""`fastserve figures`: the papers' evaluation, from the code that serves (behind `make figures`)."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from evaluation.catalogue import FIGURES
from evaluation.conclusions import CONCLUSIONS, as_published, contradictions
from evaluation.drawing import draw, gaps_of
from evaluation.execution import BarProgress, LineProgress, Progress, execute
from evaluation.finished_runs import FinishedRuns, code_digest
from evaluation.report import COMMANDS, report
from evaluation.results import Evaluation
from evaluation.tables import TableError, read_evaluation, table, table_owner
from evaluation.values import CONCLUDED, FULL, MAIN, QUICK, Figure, Scale
from services.domain.errors import InvalidFieldError
from services.experiments.processes import over_processes
from services.runtime.command_line import CommandError, ExitCode, parser, positive_int
from services.runtime.output_folder import make_writable
from services.workloads.job_records import write_lines

DEFAULT_OUT = Path("docs/evaluation")
"""Of all figures at the scale that the conclusions are about: what is committed."""
DEFAULT_OUT_OF_LESS = Path("out/evaluation")
"""Of a few figures or at a smaller scale, so that the committed results do not give way to less."""
DEFAULT_FINISHED = Path("out/figures")

TITLE = "# The evaluation, without conclusions"
NOT_WHOLE = f"The conclusions are left out: they are about all figures at the scale of `{COMMANDS[CONCLUDED.name]}`."
CONTRADICTED = "The conclusions are left out: these results contradict some of them, and the command names which."

DrawTask = tuple[Evaluation, tuple[Figure, ...], Path]


def evaluate(
    figures: Sequence[Figure], scale: Scale, finished: FinishedRuns, processes: int, progress: Progress
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
        own = table_owner(figure, evaluation.figures) is figure
        drawn = (figure, gaps_of(figure)) if own else (figure,)
        yield (Evaluation(evaluation.scale, (figure,), measured), drawn, out)


def is_whole(figures: Sequence[Figure], scale: Scale) -> bool:
    """Whether this is what the conclusions are about."""
    return scale == CONCLUDED and tuple(figures) == FIGURES


def write_tables(evaluation: Evaluation, out: Path) -> None:
    """The CSV files."""
    for figure in evaluation.figures:
        if table_owner(figure, evaluation.figures) is figure:
            write_lines(out / f"{figure.name}.csv", table(evaluation, figure).splitlines())


def write_report(evaluation: Evaluation, out: Path, processes: int, progress: Progress) -> list[str]:
    """REPORT.md and the pictures; the sentences of the conclusions that these results contradict. The conclusions are
    left out where there are any, and where they are about other figures or another scale.
    """
    text, wrong = f"{TITLE}\n\n{NOT_WHOLE}", list[str]()
    if is_whole(evaluation.figures, evaluation.scale):
        text = CONCLUSIONS.read_text(encoding="utf-8")
        wrong = [str(contradiction) for contradiction in contradictions(text, evaluation)]
        text = f"{TITLE}\n\n{CONTRADICTED}" if wrong else as_published(text)
    write_lines(out / "REPORT.md", report(evaluation, text).splitlines())
    drawings = list(_drawings(evaluation, out))
    over_processes(_draw_task, drawings, processes, lambda done: progress("figures drawn", sum(done), len(drawings)))
    return wrong


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
        "--only", metavar="NAME,...", help="the figures whose names begin so; REPORT.md is about these alone"
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where to write; replaces REPORT.md [all figures: {DEFAULT_OUT}; a few, --quick, --full: "
        f"{DEFAULT_OUT_OF_LESS}]",
    )
    made.add_argument(
        "--from-csv",
        action="store_true",
        help="simulate nothing: draw and report what the CSV files in DIR say",
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
    scale = QUICK if arguments.quick else FULL if arguments.full else MAIN
    out: Path = arguments.out or (DEFAULT_OUT if is_whole(figures, scale) else DEFAULT_OUT_OF_LESS)
    bar = BarProgress() if sys.stderr.isatty() else None
    progress: Progress = bar or LineProgress()
    try:
        with bar or nullcontext():
            make_writable(out)
            if not arguments.from_csv:
                finished = FinishedRuns(arguments.finished, code_digest())
                write_tables(evaluate(figures, scale, finished, arguments.processes, progress), out)
            # What is reported is what the files say, to the digit.
            evaluation = read_evaluation(out, figures, scale)
            wrong = write_report(evaluation, out, arguments.processes, progress)
    except (InvalidFieldError, TableError, OSError) as error:
        raise CommandError(str(error)) from error
    print(f"written to {out}")
    for sentence in wrong:
        print(f"{CONCLUSIONS.name}: {sentence}", file=sys.stderr)
    return ExitCode.FAILED if wrong else ExitCode.OK
