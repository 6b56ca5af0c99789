"""Distributions of prompt and output lengths, in tokens. Pure: a length is a function of a share between 0 and 1.

Zipf is the FastServe paper's (PAPER 5): P(length = k) proportional to k ** -theta for k = 1 .. largest.

ShareGPT-like and Alpaca-like lengths stand in for the datasets that the papers draw from. What is published of these
are means: 161.31 prompt and 337.99 output tokens for ShareGPT, 19.31 and 58.45 for Alpaca (Kwon et al., "Efficient
Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, 6.1), and that ShareGPT's lengths
vary more. Each is modelled as a lognormal distribution, cut to 1 .. 1024 tokens so that prompt and output together fit
the 2,048 tokens of an OPT model. Its mean is the published one exactly, found by bisection; its sigma is OUR
assumption, as no spread is published there: chat prompts are mostly a line and sometimes a page (1.6, which puts the
median at half of the mean), the answers less so (1.0); Alpaca's instructions are all alike (0.6), its answers are not
(0.9). Prompt and output are drawn independently.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from random import Random
from typing import Protocol

DATASET_LARGEST = 1024
_BISECTIONS = 60


class Lengths(Protocol):
    """A distribution of lengths."""

    @property
    def mean(self) -> float:
        """The mean length."""

    def quantile(self, u: float) -> int:
        """The length that a share `u` (0 to 1) of all lengths do not exceed."""


class TableLengths:
    """A distribution over 1 .. n with the given weights, which need not sum to 1."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._cumulative = list(accumulate(weights))
        self._mean = sum(k * weight for k, weight in enumerate(weights, start=1)) / self._cumulative[-1]

    @property
    def mean(self) -> float:
        return self._mean

    def quantile(self, u: float) -> int:
        return min(bisect_right(self._cumulative, u * self._cumulative[-1]), len(self._cumulative) - 1) + 1


class ZipfLengths(TableLengths):
    """The bounded Zipf distribution over 1 .. largest."""

    def __init__(self, theta: float, largest: int) -> None:
        super().__init__([k**-theta for k in range(1, largest + 1)])


class LognormalLengths(TableLengths):
    """A lognormal distribution rounded to whole tokens and cut to 1 .. largest; `mu` and `sigma` are mean and standard
    deviation of the logarithm before the cut.
    """

    def __init__(self, mu: float, sigma: float, largest: int) -> None:
        edges = [_normal_below((math.log(k + 0.5) - mu) / sigma) for k in range(largest + 1)]
        super().__init__([above - below for below, above in pairwise(edges)])


def _normal_below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


@dataclass(frozen=True, slots=True)
class Fit:
    """The mean to meet and the spread of the logarithm."""

    mean: float
    sigma: float


@dataclass(frozen=True, slots=True)
class DatasetFit:
    """The models of a dataset's prompt and output lengths."""

    prompt: Fit
    output: Fit


SHAREGPT = DatasetFit(prompt=Fit(161.31, 1.6), output=Fit(337.99, 1.0))
ALPACA = DatasetFit(prompt=Fit(19.31, 0.6), output=Fit(58.45, 0.9))


@lru_cache(maxsize=64)
def fitted_mu(fit: Fit, largest: int) -> float:
    """The mu with which lengths cut to 1 .. largest have the fit's mean."""
    assert 1 < fit.mean < (1 + largest) / 2, "the mean of a cut distribution whose tail falls"
    low, high = math.log(0.01), math.log(fit.mean) + fit.sigma**2 + 10.0
    for _ in range(_BISECTIONS):
        mu = (low + high) / 2
        if LognormalLengths(mu, fit.sigma, largest).mean < fit.mean:
            low = mu
        else:
            high = mu
    return (low + high) / 2


@lru_cache(maxsize=64)
def fitted_lengths(fit: Fit, largest: int) -> LognormalLengths:
    """The fit to the dataset; a smaller `largest` cuts that further and changes the mean, not the fit."""
    return LognormalLengths(fitted_mu(fit, DATASET_LARGEST), fit.sigma, largest)


def independent_lengths(lengths: Lengths, count: int, random: Random) -> list[int]:
    """`count` independent draws."""
    return [lengths.quantile(random.random()) for _ in range(count)]


def stratified_lengths(lengths: Lengths, count: int, random: Random) -> list[int]:
    """One draw from each of `count` equally probable strata, shuffled: the sum hardly depends on the seed, however
    heavy the tail.

    For workloads whose total work must be known beforehand: a short calibration run then has the same work per job as
    a long trace.
    """
    drawn = [lengths.quantile((stratum + random.random()) / count) for stratum in range(count)]
    random.shuffle(drawn)
    return drawn
