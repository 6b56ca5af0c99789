"""Log probabilities of a prompt's tokens, as they are found, kept and passed on: parts of one row of numbers.

A prompt may be read in several iterations, and some of it again after its KV was dropped; so parts follow each other,
and what is known already is skipped. Numbers are kept as arrays: 8 bytes for a token and for each alternative.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.domain.errors import ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.ids import JobId

MOST_PROMPT_LOGPROBS = 250_000
"""Of a request: log probabilities of prompt tokens, alternatives included, over all its choices."""


class PromptLogprobs(NamedTuple):
    """Those of the tokens from position `first_token` on, natural logarithms under the model's own distribution. Each
    has as many alternatives, best first: the ids and log probabilities of all follow each other.
    """

    first_token: int
    logprobs: "array[float]"
    top_token_ids: "array[int]"
    top_logprobs: "array[float]"

    @property
    def token_count(self) -> int:
        return len(self.logprobs)

    @property
    def alternatives(self) -> int:
        """Alternatives of each token."""
        return len(self.top_token_ids) // len(self.logprobs) if self.logprobs else 0

    def between(self, start: int, stop: int) -> "PromptLogprobs":
        """Those of positions start to stop - 1, which must be among them."""
        first, last, width = start - self.first_token, stop - self.first_token, self.alternatives
        tops = slice(first * width, last * width)
        return PromptLogprobs(start, self.logprobs[first:last], self.top_token_ids[tops], self.top_logprobs[tops])

    def of(self, prompt: Sequence[int]) -> list[TokenLogprob]:
        """The same, one by one. `prompt`: all its tokens."""
        width = self.alternatives
        return [
            TokenLogprob(
                prompt[self.first_token + number],
                logprob,
                tuple(
                    zip(
                        self.top_token_ids[number * width : (number + 1) * width],
                        self.top_logprobs[number * width : (number + 1) * width],
                        strict=True,
                    )
                ),
            )
            for number, logprob in enumerate(self.logprobs)
        ]


class ScoredPrompt(NamedTuple):
    """A part that a worker found."""

    job_id: JobId
    part: PromptLogprobs


def _nothing() -> PromptLogprobs:
    return PromptLogprobs(1, array("f"), array("I"), array("f"))


@dataclass(slots=True)
class KnownPromptLogprobs:
    """Those of a prompt of `prompt_tokens` tokens that are known so far. The first follows nothing: it has none."""

    prompt_tokens: int
    known: PromptLogprobs = field(default_factory=_nothing)

    @property
    def end(self) -> int:
        """The first position whose log probability is not known."""
        return 1 + self.known.token_count

    @property
    def are_complete(self) -> bool:
        return self.end >= self.prompt_tokens

    def add(self, part: PromptLogprobs) -> None:
        """Takes a part; what is known of it is skipped. Raises ProtocolError if some are missing before it."""
        if part.first_token > self.end:
            raise ProtocolError(
                f"log probabilities of a prompt from token {part.first_token} on, known are those before {self.end}"
            )
        stop = part.first_token + part.token_count
        if stop <= self.end:
            return
        new = part.between(self.end, stop)
        self.known.logprobs.extend(new.logprobs)
        self.known.top_token_ids.extend(new.top_token_ids)
        self.known.top_logprobs.extend(new.top_logprobs)
