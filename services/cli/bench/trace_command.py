"""`fastserve trace convert`: a public trace's CSV file becomes a trace file of JSON lines."""

from pathlib import Path

from services.domain.errors import InvalidFieldError
from services.runtime.command_line import CommandError, ExitCode, parser, positive_int
from services.workloads.job_records import write_lines
from services.workloads.public_traces import Converted, convert
from services.workloads.workload import trace_line


def _convert(file: Path, out: Path, rows: int | None) -> Converted:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            converted = convert(lines, rows)
    except InvalidFieldError as error:
        raise CommandError(f"{file}: {error}", ExitCode.REFUSED) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} can't be read: {error}", ExitCode.REFUSED) from error
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_lines(out, [trace_line(job) for job in converted.jobs])
    except OSError as error:
        raise CommandError(f"--out {out} can't be written: {error}", ExitCode.REFUSED) from error
    return converted


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    made = parser("trace", "Convert the CSV file of a public trace (Azure LLM inference, BurstGPT) to JSON lines.")
    commands = made.add_subparsers(dest="action", required=True, metavar="convert")
    to_lines = commands.add_parser("convert", help="convert a file", allow_abbrev=False)
    to_lines.add_argument("file", type=Path, metavar="CSV", help="the trace; its first line must name the columns")
    to_lines.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace file to write")
    to_lines.add_argument("--rows", type=positive_int, metavar="N", help="convert only the first N rows [all]")
    arguments = made.parse_args(argv)
    converted = _convert(arguments.file, arguments.out, arguments.rows)
    jobs = converted.jobs
    print(
        f"{converted.format}: {len(jobs)} jobs in {jobs[-1].arrival_s:.1f} s, "
        f"{converted.skipped} rows without prompt or output tokens skipped, written to {arguments.out}"
    )
    return ExitCode.OK
