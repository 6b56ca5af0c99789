"""Classes of jobs by a prediction of their output length, learnt online. Pure.

Theory of operation. What is known of a job when it arrives are its features: the client, the octave of the prompt's
length, the octave of max_tokens. (Whether it is a chat would be another; there is no chat endpoint yet.) The logarithm
of the output length is modelled as a sum,

    log2(length) = ordinary job + effect of the client + effect of the prompt + effect of max_tokens + noise

with one effect for each value of each feature. So clients of whom little is known share what is known of prompts and
of max_tokens, while classes by all features at once (KeyedClasses) would have to see each combination often. With each
job that completes, the effects of its features move towards what was seen, each in proportion to its own uncertainty,
which shrinks thereby: a Kalman filter that leaves covariances out. An uncertainty never shrinks to less than that of a
mean over MEMORY_JOBS jobs, so that effects follow the traffic.

The class is the sum of a job's effects in steps of half an octave: how much longer than an ordinary job it is. The
prediction only tells jobs apart. How long the jobs of a class really are, its length distribution tells
(length_distribution.py). That calibrates the prediction, which needs it: jobs that complete are shorter than those that
arrive while a queue builds up. Where the features say nothing, all effects are about 0, nearly all jobs are in one
class, and its distribution is that of all jobs.

Memory is bounded by the client numbers (services.domain.submission) and the bits of a token count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import log2

from services.scheduler.job import Job
from services.scheduler.policies.length_distribution import PRIOR_MEAN_TOKENS

STEPS_PER_OCTAVE = 2
MOST_STEPS = 8
"""Classes of jobs that are longer or shorter than by this many steps are one each."""
NOISE_VARIANCE = 2.0
"""Of the lengths of jobs with equal features, in octaves squared."""
EFFECT_VARIANCE = 1.0
"""Of an effect of which nothing is known."""
ORDINARY_VARIANCE = 16.0
"""Of the ordinary job's length at first."""
MEMORY_JOBS = 256
LEAST_VARIANCE = NOISE_VARIANCE / MEMORY_JOBS


class Feature(IntEnum):
    """What is known of a job when it arrives."""

    CLIENT = 0
    PROMPT = 1
    MAX_TOKENS = 2


FeatureValue = tuple[Feature, int]


def feature_values(job: Job) -> Sequence[FeatureValue]:
    """What the job is. Jobs whose client gives no name are taken as one client's."""
    return (
        (Feature.CLIENT, job.client_number),
        (Feature.PROMPT, job.prompt_tokens.bit_length()),
        (Feature.MAX_TOKENS, job.max_tokens.bit_length()),
    )


@dataclass(slots=True)
class Estimate:
    """A mean in octaves, and its variance."""

    mean: float = 0.0
    variance: float = EFFECT_VARIANCE

    def move(self, error: float, whole_variance: float) -> None:
        """Take its share of an error of the sum, whose variance is known."""
        gain = self.variance / whole_variance
        self.mean += gain * error
        self.variance = max(self.variance * (1.0 - gain), LEAST_VARIANCE)


class OnlineClasses:
    """Classes of equal prediction, of which there are 2 x MOST_STEPS + 1."""

    def __init__(self) -> None:
        self._ordinary = Estimate(log2(PRIOR_MEAN_TOKENS), ORDINARY_VARIANCE)
        self._effects: dict[FeatureValue, Estimate] = {}

    def class_of(self, job: Job) -> int:
        """Half octaves by which the job is expected to be longer than an ordinary one, within limits."""
        effects = (self._effects.get(value) for value in feature_values(job))
        octaves = sum(effect.mean for effect in effects if effect is not None)
        return min(max(round(STEPS_PER_OCTAVE * octaves), -MOST_STEPS), MOST_STEPS)

    def learn(self, job: Job, output_tokens: int) -> None:
        """Move the ordinary job and the effects of the job's features towards this length."""
        parts = [self._ordinary]
        parts += [self._effects.setdefault(value, Estimate()) for value in feature_values(job)]
        error = log2(output_tokens) - sum(part.mean for part in parts)
        whole_variance = NOISE_VARIANCE + sum(part.variance for part in parts)
        for part in parts:
            part.move(error, whole_variance)

    def state_key(self) -> tuple[object, ...]:
        effects = sorted((value, effect.mean, effect.variance) for value, effect in self._effects.items())
        return (self._ordinary.mean, self._ordinary.variance, *effects)
