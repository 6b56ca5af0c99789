"""Lengths of a given ratio of mean prompt to mean output, drawn independently of each other.

A workload of kind `ratio` gives every job the same ratio, so that a prompt's length betrays its output's, and a fixed
priority by prompt length would be an oracle. Here both are bounded Zipf distributions, and the bounds, which share a
number of tokens, are chosen for the ratio.
"""

from functools import lru_cache

from services.workloads.lengths import ZipfLengths

SHARED_TOKENS = 2000


@lru_cache
def largest_lengths(ratio: float, theta: float, shared_tokens: int = SHARED_TOKENS) -> tuple[int, int]:
    """The largest prompt and output, `shared_tokens` together, whose means have about this ratio."""
    low, high = 1, shared_tokens - 1
    while high - low > 1:
        output_tokens = (low + high) // 2
        if _ratio(output_tokens, theta, shared_tokens) > ratio:
            low = output_tokens
        else:
            high = output_tokens
    nearest = min((low, high), key=lambda tokens: abs(_ratio(tokens, theta, shared_tokens) / ratio - 1))
    return shared_tokens - nearest, nearest


def _ratio(output_tokens: int, theta: float, shared_tokens: int) -> float:
    return ZipfLengths(theta, shared_tokens - output_tokens).mean / ZipfLengths(theta, output_tokens).mean
