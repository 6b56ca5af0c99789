"""`python -m evaluation.default_policy`: judges the default policy against the best FCFS, and writes docs/policy."""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation.default_policy.cells import CELLS, CURVE_CELLS, QUICK_CELLS, Cell
from evaluation.default_policy.drawing import draw_curve, draw_everywhere, draw_waves, draw_when
from evaluation.default_policy.drawn import DRAWN_CELLS
from evaluation.default_policy.judging import Verdict, verdicts
from evaluation.default_policy.others import OTHER_CELLS
from evaluation.default_policy.pages import PAGE, filled, summary, table
from evaluation.default_policy.results import Results, as_csv, read_results
from evaluation.default_policy.running import execute
from services.runtime.command_line import CommandError, ExitCode, parser, positive_int, tell
from services.runtime.output_folder import make_writable
from services.workloads.job_records import write_lines

DEFAULT_OUT = Path("docs/policy")
LINE_PERIOD_S = 15.0
_INSTEAD: Mapping[str, tuple[str, tuple[Cell, ...]]] = {
    "drawn": ("Drawn workloads", DRAWN_CELLS),
    "others": ("Workloads unlike those that the default was made for", OTHER_CELLS),
}
"""On what else it is judged, of which there is a table alone: by the option, which the files are named by, too."""


def _parser() -> argparse.ArgumentParser:
    made = parser("default_policy", "Judge the default policy against FCFS in its best form, by simulation.")
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help=f"folder to write [{DEFAULT_OUT}]")
    made.add_argument("--quick", action="store_true", help="a look in seconds: a table of two cells, printed only")
    made.set_defaults(name="results")
    instead = made.add_mutually_exclusive_group()
    for name, (title, cells) in _INSTEAD.items():
        what = f"judge it on these {len(cells)} instead: {title.lower()} ({name}.csv, {name}.md)"
        instead.add_argument(f"--{name}", dest="name", action="store_const", const=name, help=what)
    made.add_argument("--from-csv", action="store_true", help="write what is drawn and written again from the CSV")
    made.add_argument("--processes", type=positive_int, default=os.cpu_count() or 1, help="processes [all cores]")
    return made


class _Lines:
    """A line on stderr now and then."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + LINE_PERIOD_S

    def __call__(self, done: Sequence[int]) -> None:
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + LINE_PERIOD_S
            print(f"jobs served: {sum(done)} in {sum(count > 0 for count in done)} simulations", file=sys.stderr)


def write_pages(results: Results, out: Path) -> str:
    """Page, table and pictures; returns the summary."""
    judged = list(verdicts(results, CELLS))
    write_lines(out / "README.md", filled(PAGE.read_text(encoding="utf-8"), judged).splitlines())
    for draw in (draw_when, draw_everywhere, draw_waves):
        draw(judged, out)
    draw_curve(results, out)
    return _write_table("Every point", judged, out / "table.md")


def _write_table(title: str, judged: Sequence[Verdict], file: Path) -> str:
    """Returns the summary."""
    write_lines(file, [f"# {title}", "", summary(judged), "", *table(judged).splitlines()])
    return summary(judged)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code is 0 whatever the verdicts are, and a refusal is a line."""
    try:
        return _judge(_parser().parse_args(argv))
    except CommandError as error:
        tell("default_policy", str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _judge(arguments: argparse.Namespace) -> int:
    if arguments.quick:
        runs, points = execute(QUICK_CELLS, arguments.processes, _Lines())
        print(table(list(verdicts(read_results(as_csv(runs, points).splitlines()), QUICK_CELLS))))
        return ExitCode.OK
    make_writable(arguments.out)
    name, out = arguments.name, arguments.out
    title, cells = _INSTEAD.get(name, ("", (*CELLS, *CURVE_CELLS)))
    file = out / f"{name}.csv"
    if not arguments.from_csv:
        runs, points = execute(cells, arguments.processes, _Lines())
        write_lines(file, as_csv(runs, points).splitlines())
    results = read_results(file.read_text(encoding="utf-8").splitlines())
    if title:
        print(_write_table(title, list(verdicts(results, cells)), out / f"{name}.md"))
    else:
        print(write_pages(results, out))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
