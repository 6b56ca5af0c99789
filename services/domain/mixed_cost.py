"""What mixed iterations took, beside what the cost model gives for them: a check of the model, not an input of it.

A CostProfile is made of iterations that only prefill or only decode. What it gives for a mixed one is a formula
(`services/domain/cost.py`), which is held here against iterations measured on the same machine.
"""

from collections.abc import Sequence
from math import inf
from statistics import median
from typing import NamedTuple

from services.domain.errors import InvalidFieldError


class MixedCost(NamedTuple):
    """Seconds of an iteration that prefills one prompt of `prefill_tokens` tokens and decodes one token of each of
    `decode_batch` jobs with `context_tokens` of context: as measured, and as the cost model gives it.
    """

    prefill_tokens: int
    decode_batch: int
    context_tokens: int
    seconds: float
    modelled_seconds: float

    @property
    def error(self) -> float:
        """By how much the model is too long: 0.1 is 10 %, less than 0 is too short."""
        return self.modelled_seconds / self.seconds - 1


class ModelError(NamedTuple):
    """Errors of the model over several points: the median, and the one farthest from 0."""

    median: float
    worst: float


def model_error(mixed: Sequence[MixedCost]) -> ModelError:
    """The model's error against measured points, of which there must be one at least."""
    errors = [point.error for point in mixed]
    return ModelError(median(errors), max(errors, key=abs))


def check_mixed(mixed: Sequence[MixedCost]) -> None:
    """Raises InvalidFieldError for a time that is not greater than 0, or points out of order. None at all is valid."""
    if not all(0 < seconds < inf for point in mixed for seconds in (point.seconds, point.modelled_seconds)):
        raise InvalidFieldError("mixed", "seconds must be greater than 0 and finite")
    places = [point[:3] for point in mixed]
    if sorted(set(places)) != places:
        raise InvalidFieldError("mixed", "measured points must be ascending and distinct")
