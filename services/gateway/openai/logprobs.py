"""Log probabilities in the shapes of both kinds of answer.

A token that ends the output is left out: its text is not part of the answer, so that the tokens join to the text. Not
so where the prompt is echoed: who scores prompts counts on as many entries as there are tokens. A token of bytes that
are no whole character is spelled `bytes:\\xe2\\x80`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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
    # So is what is no number, where a model has left the range of its type.
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


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


class EchoedPrompt:
    """The tokens of a prompt within its text. Where the text is not what the tokens join to (a tokenizer may normalize
    it, or put a space before it), offsets stay within it.
    """

    def __init__(self, token_ids: Sequence[int], text: str, detokenizer: Detokenizer) -> None:
        self.token_ids = token_ids
        self.text = text
        self._starts: list[int] = []
        joined = 0
        for token_id in token_ids:
            self._starts.append(joined)
            joined += len(detokenizer.push(token_id))
        self._before = max(0, joined + len(detokenizer.finish()) - len(text))

    def offset(self, position: int) -> int:
        """Where the text of the token at this position begins, in characters."""
        return min(max(0, self._starts[position] - self._before), len(self.text))


class CompletionLogprobs:
    """The `logprobs` of a choice of a completion. Offsets count characters of the choice's whole text, of which
    `offset` come before the output. `prompt`: there if it is echoed; its tokens come first. Called at the first piece.
    """

    def __init__(
        self,
        reported: ReportedLogprobs,
        tokenizer: Spelling,
        detokenizer: Detokenizer,
        offset: int,
        prompt: Callable[[], EchoedPrompt] | None = None,
    ) -> None:
        self._reported = reported
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._offset = offset
        self._prompt = prompt
        self._echoed: EchoedPrompt | None = None
        self._position = 0

    def of(self, piece: OutputPiece) -> dict[str, Any]:
        """Those of the piece."""
        entries: list[_Entry] = []
        if self._prompt is not None:
            self._echoed = self._echoed or self._prompt()
            entries += self._of_prompt(piece, self._echoed)
        for one in self._reported.shown(piece):
            entries.append(self._entry(one, self._offset))
            self._offset += len(self._detokenizer.push(one.token_id))
        return {
            "text_offset": [entry.offset for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "tokens": [entry.text for entry in entries],
            "top_logprobs": [entry.top for entry in entries],
        }

    def _of_prompt(self, piece: OutputPiece, prompt: EchoedPrompt) -> list["_Entry"]:
        entries: list[_Entry] = []
        if self._position == 0:
            self._position = 1
            first = token_text(self._tokenizer.spelled(prompt.token_ids[0]))
            entries.append(_Entry(first, None, None, prompt.offset(0)))
        for one in piece.prompt_logprobs:
            entries.append(self._entry(one, prompt.offset(self._position)))
            self._position += 1
        return entries

    def _entry(self, one: TokenLogprob, offset: int) -> "_Entry":
        text = token_text(self._tokenizer.spelled(one.token_id))
        best = {token_text(self._tokenizer.spelled(token_id)): _number(logprob) for token_id, logprob in one.top}
        return _Entry(text, _number(one.logprob), {**best, text: _number(one.logprob)}, offset)


class _Entry(NamedTuple):
    """One token of an answer."""

    text: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int
