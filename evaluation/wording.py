"""Words that numbers choose."""

from collections.abc import Sequence
from itertools import pairwise

from evaluation.findings import times_of
from evaluation.values import Lengths
from services.workloads.workload import WorkloadKind

SAME = 1.05
"""Numbers whose ratio is nearer to 1 than this are called the same."""

KIND_WORDS = {WorkloadKind.ZIPF: "Zipf", WorkloadKind.SHAREGPT: "ShareGPT", WorkloadKind.ALPACA: "Alpaca"}


def against(ratio: float, other: str) -> str:
    """A time beside another that is `ratio` times as long, in words with the number."""
    if ratio >= SAME:
        return f"{times_of(ratio)} shorter than {other}"
    return f"{times_of(1 / ratio)} longer than {other}" if ratio <= 1 / SAME else f"about as long as {other}"


def trend(values: Sequence[tuple[float, float]], axis: str) -> str:
    """How the second of ascending (x, ratio) goes with the first: "grows" and "shrinks" only where all points do."""
    ratios = [ratio for _, ratio in values]
    (first_x, first), (last_x, last) = values[0], values[-1]
    ends = f": {times_of(first)} at {first_x:g}, {times_of(last)} at {last_x:g}"
    least, most = (pick(values, key=lambda pair: pair[1]) for pick in (min, max))
    if most[1] < least[1] * SAME:
        return f"hardly changes with {axis}{ends}"
    if all(after >= before for before, after in pairwise(ratios)):
        return f"grows with {axis}{ends}"
    if all(after <= before for before, after in pairwise(ratios)):
        return f"shrinks with {axis}{ends}"
    return (
        f"depends on {axis}, not in one direction: least {times_of(least[1])} at {least[0]:g}, greatest "
        f"{times_of(most[1])} at {most[0]:g}"
    )


def lengths_words(lengths: Lengths) -> str:
    """How prompts and outputs are distributed."""
    bounds = f"outputs of 1 to {lengths.max_output_tokens:,} and prompts of 1 to {lengths.max_prompt_tokens:,} tokens"
    if lengths.kind is not WorkloadKind.ZIPF:
        return f"{KIND_WORDS[lengths.kind]} lengths"
    return f"{bounds}, all equally likely" if not lengths.theta else f"{bounds}, Zipf with theta {lengths.theta:g}"
