"""Workloads: traces read from JSON lines, and generated ones. Pure: all randomness comes from the seed, nothing reads
a clock.

The generated ones are the FastServe paper's (PAPER 5). Lengths: see lengths.py. Gaps between arrivals come from a
Gamma distribution of a given mean (1 / rate) and coefficient of variation, so that a CV of 1 is Poisson traffic and one
of 4 comes in bursts.

Kinds of workloads: `zipf`, prompts and outputs drawn independently from the same bounded Zipf distribution; `sharegpt`
and `alpaca`, from models of these datasets; `ratio`, all jobs with the same ratio of prompt to output: a
length for both together is drawn from the bounded Zipf distribution, and the job gets as many whole output tokens as
fit, one at least, and the prompt that belongs to them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from random import Random

from services.domain.errors import InvalidFieldError
from services.domain.submission import MOST_CLIENT_CHARACTERS
from services.workloads.lengths import (
    ALPACA,
    SHAREGPT,
    Lengths,
    ZipfLengths,
    fitted_lengths,
    independent_lengths,
    stratified_lengths,
)

MOST_JOBS = 1_000_000
MOST_TOKENS = 10_000_000
"""Limit of a prompt or an output in a trace. A server accepts less."""
_LIMITS: Mapping[str, tuple[float, float]] = {
    "rate": (1e-9, 1e9),
    "cv": (1e-3, 1e3),
    "theta": (0.0, 1e3),
    "ratio": (1e-6, 1e6),
}
"""Far beyond these limits parameters of the distributions, or arrival times, stop being finite numbers."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One request of a trace. `arrival_s` counts from the trace's start; the prompt is text, token ids, or (neither)
    random ids. `client` is the name that the client gives, if any.
    """

    job_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    client: str = ""


class WorkloadKind(StrEnum):
    """Where lengths come from."""

    ZIPF = "zipf"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Workload:
    """A generated workload. `rate` in jobs per second, `cv` of the gaps between arrivals; `theta` of the lengths of
    `zipf` and `ratio`; `ratio` of prompt to output tokens of a `ratio` workload. Longest lengths cut the distributions.
    """

    jobs: int
    rate: float
    cv: float
    theta: float
    max_prompt_tokens: int
    max_output_tokens: int
    seed: int
    kind: WorkloadKind = WorkloadKind.ZIPF
    ratio: float = 1.0


def wrong_with(name: str, value: float) -> str | None:
    """What is wrong with this `rate`, `cv`, `theta` or `ratio` of a generated workload; None if nothing is."""
    least, most = _LIMITS[name]
    if least <= value <= most or (name == "cv" and value == 0):
        return None
    return f"must be {'0 or ' if name == 'cv' else ''}from {least:g} to {most:g}, got {value:g}"


def gamma_arrivals(count: int, rate: float, cv: float, random: Random) -> list[float]:
    """Ascending arrival times, the first at 0. CV 0 is a metronome."""
    shape = 1 / cv**2 if cv > 0 else math.inf
    gaps = [1 / rate if cv == 0 else random.gammavariate(shape, 1 / (rate * shape)) for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))


_FITS = {WorkloadKind.SHAREGPT: SHAREGPT, WorkloadKind.ALPACA: ALPACA}


def _lengths(workload: Workload) -> tuple[Lengths, Lengths]:
    """Of prompts and of outputs."""
    fit = _FITS.get(workload.kind)
    if fit is None:
        return (
            ZipfLengths(workload.theta, workload.max_prompt_tokens),
            ZipfLengths(workload.theta, workload.max_output_tokens),
        )
    return (
        fitted_lengths(fit.prompt, workload.max_prompt_tokens),
        fitted_lengths(fit.output, workload.max_output_tokens),
    )


def split_by_ratio(total_tokens: int, ratio: float) -> tuple[int, int]:
    """Prompt and output tokens of a job of about `total_tokens`: the ratio matters more than the sum."""
    output_tokens = max(1, int(total_tokens / (1 + ratio)))
    return max(1, int(output_tokens * ratio)), output_tokens


def make_trace(workload: Workload, *, stratified: bool = False) -> list[TraceJob]:
    """The trace of a workload: the same for the same value. Rate and CV change no length."""
    streams = [Random(f"{workload.seed}/{name}") for name in ("prompts", "outputs", "arrivals")]
    draw = stratified_lengths if stratified else independent_lengths
    if workload.kind is WorkloadKind.RATIO:
        both = ZipfLengths(workload.theta, workload.max_prompt_tokens + workload.max_output_tokens)
        lengths = [split_by_ratio(total, workload.ratio) for total in draw(both, workload.jobs, streams[0])]
    else:
        prompt_lengths, output_lengths = _lengths(workload)
        prompts = draw(prompt_lengths, workload.jobs, streams[0])
        lengths = list(zip(prompts, draw(output_lengths, workload.jobs, streams[1]), strict=True))
    arrivals = gamma_arrivals(workload.jobs, workload.rate, workload.cv, streams[2])
    return [
        TraceJob(str(number), arrival_s, prompt_tokens, output_tokens)
        for number, (arrival_s, (prompt_tokens, output_tokens)) in enumerate(zip(arrivals, lengths, strict=True))
    ]


def scale_arrivals(trace: Sequence[TraceJob], rate: float) -> list[TraceJob]:
    """The same trace, its arrivals stretched so that `rate` jobs come per second from the first to the last."""
    span_s = trace[-1].arrival_s - trace[0].arrival_s
    factor = (len(trace) - 1) / rate / span_s if span_s > 0 else 0.0
    return [replace(job, arrival_s=(job.arrival_s - trace[0].arrival_s) * factor) for job in trace]


def random_token_ids(count: int, vocabulary_size: int, seed: str) -> list[int]:
    """Seeded token ids from the middle of the vocabulary: special tokens sit at either end of it."""
    low, high = vocabulary_size // 8, max(vocabulary_size * 7 // 8, vocabulary_size // 8 + 1)
    return Random(seed).choices(range(low, high), k=count)


def read_trace(lines: Iterable[str]) -> list[TraceJob]:
    """The jobs of a trace file in order of arrival. Raises InvalidFieldError naming the line."""
    jobs = sorted(_trace_jobs(lines), key=lambda job: job.arrival_s)
    if not jobs:
        raise InvalidFieldError("trace", "has no jobs")
    return jobs


def _trace_jobs(lines: Iterable[str]) -> Iterator[TraceJob]:
    for number, line in enumerate(lines, start=1):
        if number > MOST_JOBS:
            raise InvalidFieldError("trace", f"has more than {MOST_JOBS} lines")
        if line.strip():
            try:
                yield _trace_job(line, number)
            except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
                reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                raise InvalidFieldError(f"trace line {number}", reason) from error


def _trace_job(line: str, number: int) -> TraceJob:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    text, ids, client = fields.get("prompt"), fields.get("prompt_token_ids"), fields.get("client", "")
    if not isinstance(client, str) or len(client) > MOST_CLIENT_CHARACTERS:
        raise ValueError(f"client must be a text of at most {MOST_CLIENT_CHARACTERS} characters")
    job = TraceJob(
        job_id=str(fields.get("id", number - 1)),
        arrival_s=float(fields["arrival_s"]),
        prompt_tokens=len(ids) if ids is not None else int(fields["prompt_tokens"]),
        output_tokens=int(fields["output_tokens"]),
        prompt=None if text is None else str(text),
        prompt_token_ids=None if ids is None else tuple(int(token) for token in ids),
        client=client,
    )
    if not 0 <= job.arrival_s < math.inf or job.prompt_tokens < 1 or job.output_tokens < 1:
        raise ValueError("arrival_s must be 0 or more, prompt_tokens and output_tokens 1 or more")
    if max(job.prompt_tokens, job.output_tokens) > MOST_TOKENS:
        raise ValueError(f"prompt_tokens and output_tokens must be at most {MOST_TOKENS}")
    return job


def trace_line(job: TraceJob) -> str:
    """A job as a line of a trace file."""
    fields: dict[str, object] = {
        "id": job.job_id,
        "arrival_s": round(job.arrival_s, 6),
        "prompt_tokens": job.prompt_tokens,
        "output_tokens": job.output_tokens,
    }
    if job.prompt is not None:
        fields["prompt"] = job.prompt
    if job.prompt_token_ids is not None:
        fields["prompt_token_ids"] = list(job.prompt_token_ids)
    if job.client:
        fields["client"] = job.client
    return json.dumps(fields)
