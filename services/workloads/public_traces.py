"""Reads the CSV files of public traces. Pure: lines in, jobs out. Columns are recognised by their names in the first
line; they may be in any order and among others.

- Azure LLM inference (2023, 2024): TIMESTAMP, a date and time; ContextTokens; GeneratedTokens.
- BurstGPT (all releases): Timestamp, seconds; Request tokens; Response tokens. Requests that failed have 0 response
  tokens.

A row without prompt or without output gives a server no work; it is skipped and counted. All other rows become
jobs in the order of their times, the first at 0.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from services.domain.errors import InvalidFieldError
from services.workloads.workload import MOST_JOBS, MOST_TOKENS, TraceJob


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a trace format that make a job; `seconds` parses a time."""

    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]


@dataclass(frozen=True, slots=True)
class Converted:
    """A public trace as jobs. `skipped`: rows without prompt or output."""

    format: str
    jobs: tuple[TraceJob, ...]
    skipped: int


def _date_seconds(text: str) -> float:
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


FORMATS = (
    Columns("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_seconds),
    Columns("burstgpt", "Timestamp", "Request tokens", "Response tokens", float),
)


def convert(lines: Iterable[str], most_rows: int | None = None) -> Converted:
    """The jobs of a CSV file, or of its first `most_rows` rows. Raises InvalidFieldError naming line and column."""
    reader = csv.reader(lines)
    try:
        columns, places = _recognised(next(reader, []))
        jobs: list[TraceJob] = []
        skipped = 0
        for row_number, row in enumerate(_rows(reader), start=1):
            if most_rows is not None and row_number > most_rows:
                break
            job = _job(row, columns, places, reader.line_num)
            if job is None:
                skipped += 1
            elif len(jobs) >= MOST_JOBS:
                raise InvalidFieldError(
                    f"line {reader.line_num}", f"exceeds the limit of {MOST_JOBS} jobs; convert fewer rows"
                )
            else:
                jobs.append(job)
    except csv.Error as error:
        raise InvalidFieldError(f"line {reader.line_num}", str(error)) from error
    if not jobs:
        raise InvalidFieldError("trace", "has no rows with prompt and output tokens")
    return Converted(columns.name, _from_zero(jobs), skipped)


def _rows(reader: Iterable[list[str]]) -> Iterator[list[str]]:
    return (row for row in reader if any(row))


def _recognised(header: Sequence[str]) -> tuple[Columns, dict[str, int]]:
    names = [name.strip().removeprefix("\ufeff") for name in header]
    for columns in FORMATS:
        if columns.time in names:
            missing = [name for name in (columns.prompt, columns.output) if name not in names]
            if missing:
                raise InvalidFieldError(
                    "line 1", f"has the column {columns.time} of {columns.name}, but no column {missing[0]}"
                )
            return columns, {name: names.index(name) for name in (columns.time, columns.prompt, columns.output)}
    known = " or ".join(f"{one.time}, {one.prompt}, {one.output} ({one.name})" for one in FORMATS)
    raise InvalidFieldError("line 1", f"must name the columns {known}")


def _job(row: Sequence[str], columns: Columns, places: dict[str, int], line: int) -> TraceJob | None:
    def value(column: str, read: Callable[[str], float]) -> float:
        try:
            number = read(row[places[column]])
            if not math.isfinite(number):
                raise ValueError
        except IndexError:
            raise InvalidFieldError(f"line {line}, column {column}", "is missing") from None
        except (ValueError, OverflowError):
            text = row[places[column]][:40]
            raise InvalidFieldError(f"line {line}, column {column}", f"can't be read: {text!r}") from None
        return number

    def tokens(column: str) -> int:
        count = value(column, float)
        if not 0 <= count <= MOST_TOKENS or count != int(count):
            raise InvalidFieldError(
                f"line {line}, column {column}", f"must be a whole number from 0 to {MOST_TOKENS}, got {count:g}"
            )
        return int(count)

    time_s = value(columns.time, columns.seconds)
    prompt_tokens, output_tokens = tokens(columns.prompt), tokens(columns.output)
    return TraceJob("", time_s, prompt_tokens, output_tokens) if prompt_tokens and output_tokens else None


def _from_zero(jobs: list[TraceJob]) -> tuple[TraceJob, ...]:
    jobs.sort(key=lambda job: job.arrival_s)
    start_s, end_s = jobs[0].arrival_s, jobs[-1].arrival_s
    if not math.isfinite(end_s - start_s):
        raise InvalidFieldError("trace", f"has times that are too far apart: {start_s:g} s and {end_s:g} s")
    return tuple(
        replace(job, job_id=str(number), arrival_s=round(job.arrival_s - start_s, 6)) for number, job in enumerate(jobs)
    )
