"""Workloads on which the default policy is judged: a real trace, models of others, the papers' made-up ones. Pure but
for reading the trace file. A workload of a seed is the same jobs at every rate: only the time between them changes.

- `conv`: a segment of a real trace of chats (traces/README.md); a seed picks the segment.
- `code`: modelled by what is published of its companion. Lognormal prompts of 2,048 tokens on average (sigma 0.8,
  ours), lognormal outputs with median 13 and P99 252 (so sigma 1.27 and a mean of 29), Gamma gaps of CV 13.
- `sharegpt`, `alpaca`, `zipf`: see services.workloads.lengths. The spread of ShareGPT's outputs is our assumption, so
  it is also varied.
- Those of `other_lengths.py`.
- A wave: Poisson arrivals whose rate swings by a share of its mean, as a sine.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

from evaluation.default_policy.other_lengths import OTHER_LENGTHS
from services.simulator.server_setup import SimulatedJob
from services.workloads.lengths import (
    ALPACA,
    DATASET_LARGEST,
    SHAREGPT,
    Fit,
    Lengths,
    LognormalLengths,
    ZipfLengths,
    fitted_mu,
    stratified_lengths,
)
from services.workloads.public_traces import convert
from services.workloads.workload import gamma_arrivals

CONV = Path(__file__).resolve().parents[2] / "traces" / "azure-llm-2023-conv-first-60-percent.csv"
CODE_PROMPT_TOKENS, CODE_OUTPUT_TOKENS = 7168, 1024
"""The longest, which together fit a context of 8,192 tokens."""
_CODE_PROMPT = Fit(2048.0, 0.8)
_CODE_OUTPUT_MEDIAN, _CODE_OUTPUT_P99 = 13.0, 252.0
_NORMAL_P99 = 2.3263
_BISECTIONS = 50
RUSH_PART = (0.3, 0.75)
"""Between these shares of the jobs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload without its rate. `theta` is of zipf; `sigma` of sharegpt's outputs, None for our assumption; `wave`:
    amplitude of the rate over its mean, in `waves` periods; `together`: so many jobs come at once; `rush`: the rate of
    the jobs of RUSH_PART over that of the others.
    """

    kind: str
    jobs: int
    cv: float = 1.0
    theta: float = 0.0
    sigma: float | None = None
    wave: float = 0.0
    waves: float = 2.0
    together: int = 1
    rush: float = 1.0
    longest_tokens: int = DATASET_LARGEST


def jobs_of(shape: Shape, seed: int, rate_per_s: float) -> list[SimulatedJob]:
    """The jobs at a rate, from the first, at 0."""
    units, lengths = _jobs_at_unit_rate(shape, seed)
    return [
        SimulatedJob(str(number), unit / rate_per_s, prompt, output)
        for number, (unit, (prompt, output)) in enumerate(zip(units, lengths, strict=True))
    ]


@lru_cache(maxsize=8)
def _jobs_at_unit_rate(shape: Shape, seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    """Arrivals at one job a second, and (prompt, output) tokens."""
    if shape.kind == "conv":
        arrivals, lengths = _segment(shape.jobs, seed)
    elif (draw := OTHER_LENGTHS.get(shape.kind)) is not None:
        random = Random(f"{seed}/lengths")
        lengths = [draw(random, number / shape.jobs) for number in range(shape.jobs)]
        arrivals = _arrivals(shape, Random(f"{seed}/arrivals"))
    else:
        prompts, outputs = _distributions(shape)
        streams = [Random(f"{seed}/{name}") for name in ("prompts", "outputs", "arrivals")]
        drawn = (
            stratified_lengths(one, shape.jobs, stream)
            for one, stream in zip((prompts, outputs), streams[:2], strict=True)
        )
        lengths = list(zip(*drawn, strict=True))
        arrivals = _arrivals(shape, streams[2])
    span = arrivals[-1] - arrivals[0]
    units = [(arrival - arrivals[0]) * (len(arrivals) - 1) / span for arrival in arrivals]
    return ([_warped(unit, shape.wave, len(units) / shape.waves) for unit in units] if shape.wave else units), lengths


def _arrivals(shape: Shape, random: Random) -> list[float]:
    """Ascending, from 0. Whoever asks scales them to one job a second."""
    groups = gamma_arrivals(-(-shape.jobs // shape.together), 1.0, shape.cv, random)
    arrivals = [arrival for arrival in groups for _ in range(shape.together)][: shape.jobs]
    if shape.rush == 1.0:
        return arrivals
    begin, end = (share * shape.jobs for share in RUSH_PART)
    gaps = (later - sooner for sooner, later in pairwise(arrivals))
    hurried = (gap / shape.rush if begin <= number < end else gap for number, gap in enumerate(gaps))
    return list(accumulate(hurried, initial=0.0))


def _segment(jobs: int, seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    whole = _trace()
    start = (seed * jobs) % (len(whole) - jobs + 1)
    part = whole[start : start + jobs]
    return [arrival for arrival, _, _ in part], [(prompt, output) for _, prompt, output in part]


@lru_cache(maxsize=1)
def _trace() -> tuple[tuple[float, int, int], ...]:
    with CONV.open(encoding="utf-8") as lines:
        return tuple((job.arrival_s, job.prompt_tokens, job.output_tokens) for job in convert(lines).jobs)


def _distributions(shape: Shape) -> tuple[Lengths, Lengths]:
    """Of prompts and of outputs."""
    longest = shape.longest_tokens
    if shape.kind == "zipf":
        return ZipfLengths(shape.theta, longest), ZipfLengths(shape.theta, longest)
    if shape.kind == "code":
        sigma = math.log(_CODE_OUTPUT_P99 / _CODE_OUTPUT_MEDIAN) / _NORMAL_P99
        mu = fitted_mu(_CODE_PROMPT, CODE_PROMPT_TOKENS)
        prompts = LognormalLengths(mu, _CODE_PROMPT.sigma, CODE_PROMPT_TOKENS)
        return prompts, LognormalLengths(math.log(_CODE_OUTPUT_MEDIAN), sigma, CODE_OUTPUT_TOKENS)
    prompt, output = {"sharegpt": (SHAREGPT.prompt, SHAREGPT.output), "alpaca": (ALPACA.prompt, ALPACA.output)}[
        shape.kind
    ]
    if shape.sigma is not None:
        output = Fit(output.mean, shape.sigma)
    first, second = (LognormalLengths(fitted_mu(fit, longest), fit.sigma, longest) for fit in (prompt, output))
    return first, second


def _warped(unit: float, amplitude: float, period: float) -> float:
    """When so many jobs have come, if the rate is 1 + amplitude x sin: by bisection."""
    low, high = 0.0, unit + period
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        turn = 2 * math.pi * middle / period
        if middle + amplitude * period / (2 * math.pi) * (1 - math.cos(turn)) < unit:
            low = middle
        else:
            high = middle
    return low
