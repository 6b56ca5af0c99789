"""Lengths of jobs unlike those that the default policy was made for, all of our own making. Pure.

Real servers see them: a service that asks for a fixed number of tokens, chats beside long reports, documents as
prompts, labels as answers, a limit on tokens that many answers reach, and traffic that is of another kind later.
"""

from collections.abc import Callable, Mapping
from math import log
from random import Random

_LONGEST_PROMPT, _LONGEST_OUTPUT = 7000, 7000
"""Beside outputs and prompts of up to 1,100 tokens they fit a context of 8,192."""
_FIXED_TOKENS = 256
_REPORTS, _REPORT_TOKENS = 0.1, (1200, 2400)
_CUT_AT = 512
_LABELS, _LONGEST_LABEL = 0.7, 10
_LONG_EXPONENTIALS, _EXPONENTIAL_MEANS = 0.2, (20.0, 600.0)
_GROWN = 10.0

Draw = Callable[[Random, float], tuple[int, int]]
"""Prompt and output tokens of a job; the float is the share of all jobs that came before it."""


def _lognormal(random: Random, median: float, sigma: float, most: int) -> int:
    return min(max(1, round(random.lognormvariate(log(median), sigma))), most)


def _prompt(random: Random) -> int:
    return _lognormal(random, 100.0, 0.8, 1000)


def _fixed(random: Random, _: float) -> tuple[int, int]:
    return _prompt(random), _FIXED_TOKENS


def _uniform(random: Random, _: float) -> tuple[int, int]:
    return random.randint(16, 256), random.randint(1, 1024)


def _reports(random: Random, _: float) -> tuple[int, int]:
    """One job in ten is a report of some 1,800 tokens, the others are answers of some 50."""
    if random.random() < _REPORTS:
        return _prompt(random), random.randint(*_REPORT_TOKENS)
    return _prompt(random), _lognormal(random, 50.0, 0.6, 300)


def _exponentials(random: Random, _: float) -> tuple[int, int]:
    mean = _EXPONENTIAL_MEANS[random.random() < _LONG_EXPONENTIALS]
    return _prompt(random), max(1, round(random.expovariate(1.0 / mean)))


def _pareto(exponent: float, least: float) -> Draw:
    def draw(random: Random, _: float) -> tuple[int, int]:
        return _prompt(random), min(round(least * random.paretovariate(exponent)), _LONGEST_OUTPUT)

    return draw


def _cut(random: Random, _: float) -> tuple[int, int]:
    """Some two in five reach the limit."""
    return _prompt(random), _lognormal(random, 400.0, 1.2, _CUT_AT)


def _documents(random: Random, _: float) -> tuple[int, int]:
    return _lognormal(random, 4500.0, 0.4, _LONGEST_PROMPT), _lognormal(random, 100.0, 0.8, 800)


def _mixed_prompts(random: Random, _: float) -> tuple[int, int]:
    return _lognormal(random, 1500.0, 1.2, _LONGEST_PROMPT), _lognormal(random, 20.0, 1.6, 1100)


def _labels(random: Random, _: float) -> tuple[int, int]:
    """A token in seven of ten jobs, up to ten in the others: all of the work is prefills."""
    output = 1 if random.random() < _LABELS else random.randint(2, _LONGEST_LABEL)
    return _lognormal(random, 800.0, 1.0, _LONGEST_PROMPT), output


def _changing(before: float, after: float) -> Draw:
    def draw(random: Random, way: float) -> tuple[int, int]:
        return _prompt(random), _lognormal(random, before if way < 0.5 else after, 0.8, 3000)

    return draw


OTHER_LENGTHS: Mapping[str, Draw] = {
    "256 tokens each": _fixed,
    "1 to 1024 tokens": _uniform,
    "answers and reports": _reports,
    "two exponentials": _exponentials,
    "Pareto 1.0": _pareto(1.0, 5.0),
    "Pareto 1.4": _pareto(1.4, 20.0),
    "cut at 512": _cut,
    "documents": _documents,
    "prompts of all lengths": _mixed_prompts,
    "labels": _labels,
    "tenfold halfway": _changing(40.0, _GROWN * 40.0),
    "a tenth halfway": _changing(_GROWN * 40.0, 40.0),
}
