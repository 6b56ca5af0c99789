"""One completion as values: what `generate` asks for and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A prompt (text or token ids) and how to continue it; `sampling` holds fields of SamplingParams by name, the
    rest keep their defaults.
    """

    prompt: str | Sequence[int]
    sampling: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    request_id: str = ""


class UsageFigures(NamedTuple):
    """What a request took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    preemptions: int


class LogprobFigures(NamedTuple):
    """Log probability of a chosen token and of the most probable ones."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Piece(NamedTuple):
    """One message of a stream. `finish_reason` is stop, length or abort on a choice's last message, `usage` comes
    with the stream's last.
    """

    request_id: str
    choice: int
    first_token_number: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[LogprobFigures, ...]
    finish_reason: str | None
    usage: UsageFigures | None

    def as_json(self) -> dict[str, object]:
        """The message as a JSON object."""
        fields: dict[str, object] = {
            "request_id": self.request_id,
            "index": self.choice,
            "first_token_number": self.first_token_number,
            "token_ids": list(self.token_ids),
            "text": self.text,
            "finish_reason": self.finish_reason,
        }
        if self.logprobs:
            fields["logprobs"] = [
                {
                    "token_id": token.token_id,
                    "logprob": token.logprob,
                    "top": [{"token_id": token_id, "logprob": logprob} for token_id, logprob in token.top],
                }
                for token in self.logprobs
            ]
        if self.usage is not None:
            fields["usage"] = self.usage._asdict()
        return fields


class Progress(NamedTuple):
    """What a load generator keeps of a message."""

    token_count: int
    finish_reason: str | None
    usage: UsageFigures | None
