"""Log probabilities in the shapes of both kinds of answer.

A token that ends the output is left out: its text is not part of the answer, so that the tokens join to the text. A
token of bytes that are no whole character is spelled `bytes:\\xe2\\x80`.
"""

from typing import Any, Protocol

from services.domain.generation import OutputPiece, TokenLogprob
from services.gateway.generation.detokenizer import Detokenizer

LEAST_LOGPROB = -9999.0
"""In the place of minus infinity, which JSON lacks."""


class Spelling(Protocol):
    """What the tokenizer knows of single tokens."""

    def spelled(self, token_id: int) -> bytes: ...


def token_text(spelled: bytes) -> str:
    """A token as a string."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _number(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


class ReportedLogprobs:
    """The log probabilities of one choice, piece by piece. `stop_token_ids` end the output."""

    def __init__(self, tokenizer: Spelling, stop_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids

    def shown(self, piece: OutputPiece) -> list[TokenLogprob]:
        """Those of the piece whose tokens have a text."""
        return [one for one in piece.logprobs if one.token_id not in self._stop_token_ids]

    def for_chat(self, piece: OutputPiece) -> dict[str, Any]:
        """The `logprobs` of a chat choice."""
        entries = []
        for one in self.shown(piece):
            top = [self._entry(token_id, logprob) for token_id, logprob in one.top]
            entries.append({**self._entry(one.token_id, one.logprob), "top_logprobs": top})
        return {"content": entries, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.spelled(token_id)
        return {"token": token_text(spelled), "logprob": _number(logprob), "bytes": list(spelled)}


class CompletionLogprobs:
    """The `logprobs` of a choice of a completion. Offsets count characters of the choice's whole text."""

    def __init__(self, reported: ReportedLogprobs, tokenizer: Spelling, detokenizer: Detokenizer, offset: int) -> None:
        self._reported = reported
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._offset = offset

    def of(self, piece: OutputPiece) -> dict[str, Any]:
        """Those of the piece."""
        tokens: list[str] = []
        token_logprobs: list[float] = []
        top_logprobs: list[dict[str, float]] = []
        offsets: list[int] = []
        for one in self._reported.shown(piece):
            text = token_text(self._tokenizer.spelled(one.token_id))
            tokens.append(text)
            token_logprobs.append(_number(one.logprob))
            best = {token_text(self._tokenizer.spelled(token_id)): _number(logprob) for token_id, logprob in one.top}
            top_logprobs.append({**best, text: _number(one.logprob)})
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.push(one.token_id))
        return {
            "text_offset": offsets,
            "token_logprobs": token_logprobs,
            "tokens": tokens,
            "top_logprobs": top_logprobs,
        }
