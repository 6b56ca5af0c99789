"""The bytes of answers: JSON documents and server-sent events, in OpenAI's shapes.

A stream writes an event for every token, so everything of an event but the text is made once for each choice.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from services.domain.generation import EndReason, OutputPiece
from services.gateway.openai.logprobs import CompletionLogprobs, ReportedLogprobs

JSON = "application/json"
EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
COMMENT = b": the answer goes on\n\n"

_FINISH = {EndReason.STOP: b'"stop"', EndReason.LENGTH: b'"length"'}


class AnswerHead(NamedTuple):
    """What all documents of an answer share. `created_s` is Unix time."""

    answer_id: str
    created_s: int
    model: str


class Words(NamedTuple):
    """In what chat answers and completions differ."""

    whole: str
    chunk: str
    before_text: bytes
    after_text: bytes
    opening: bytes
    """The first event's content in place of a text; empty if there is none."""


COMPLETION = Words("text_completion", "text_completion", b'"text":', b"", b"")
CHAT = Words(
    "chat.completion",
    "chat.completion.chunk",
    b'"delta":{"content":',
    b"}",
    b'"delta":{"role":"assistant","content":""}',
)

CALLS_OPENING = b'"delta":{"role":"assistant","content":null}'
"""In an answer that may have calls in the place of content."""


def document(value: Any) -> bytes:
    """A JSON document."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The `usage` of an answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def finish_name(finish: EndReason) -> str:
    """The `finish_reason` of a choice that ended by itself."""
    return finish.value


class ChoiceEvents:
    """The events of one choice. `usage`: the member that chunks have beside the choices, made anew for each if None."""

    def __init__(self, words: Words, head: AnswerHead, index: int, has_usage: bool) -> None:
        self._words = words
        self._before = b"data: " + _chunk_head(words, head) + b',"choices":[{"index":%d,' % index
        self._has_usage = has_usage
        self._is_open = False

    def event(self, piece: OutputPiece, logprobs: dict[str, Any] | None, usage: dict[str, int] | None) -> bytes:
        """The event of a piece, after the choice's first one if that is due."""
        words = self._words
        finish = b"null" if piece.finish is None else _FINISH[piece.finish]
        shown = b"null" if logprobs is None else document(logprobs)
        text = words.before_text + encode_basestring_ascii(piece.text).encode() + words.after_text
        event = self._whole(text, shown, finish, usage)
        if self._is_open or not words.opening:
            return event
        self._is_open = True
        return self._whole(words.opening, b"null", b"null", usage) + event

    def deltas(
        self,
        deltas: Sequence[dict[str, Any]],
        logprobs: dict[str, Any] | None,
        finish: str | None,
        usage: dict[str, int] | None,
    ) -> bytes:
        """The events of these deltas, empty if there is nothing to tell. The first has the log probabilities, the last
        the finish.
        """
        if not deltas and logprobs is None and finish is None and usage is None:
            return b""
        shown = b"null" if logprobs is None else document(logprobs)
        told = b""
        if not self._is_open:
            self._is_open = True
            told = self._whole(CALLS_OPENING, b"null", b"null", usage)
        last = max(0, len(deltas) - 1)
        for place, delta in enumerate(deltas or ({},)):
            ends = document(finish) if place == last else b"null"
            told += self._whole(b'"delta":' + document(delta), shown, ends, usage)
            shown = b"null"
        return told

    def echo(self, text: str, usage: dict[str, int] | None) -> bytes:
        """An event with a text that is not output."""
        return self._whole(self._words.before_text + encode_basestring_ascii(text).encode(), b"null", b"null", usage)

    def _whole(self, text: bytes, logprobs: bytes, finish: bytes, usage: dict[str, int] | None) -> bytes:
        beside = b""
        if usage is not None:
            beside = b',"usage":' + document(usage)
        elif self._has_usage:
            beside = b',"usage":null'
        return b'%b%b,"logprobs":%b,"finish_reason":%b}]%b}\n\n' % (self._before, text, logprobs, finish, beside)


def _chunk_head(words: Words, head: AnswerHead) -> bytes:
    """The beginning of a chunk, as an object that is still open."""
    start = {"id": head.answer_id, "object": words.chunk, "created": head.created_s, "model": head.model}
    return document(start).removesuffix(b"}")


def usage_event(words: Words, head: AnswerHead, usage: dict[str, int]) -> bytes:
    """The chunk without choices that ends a stream with the usage."""
    return b'data: %b,"choices":[],"usage":%b}\n\n' % (_chunk_head(words, head), document(usage))


class WholeChoice:
    """A choice of an answer that is sent when it is complete."""

    __slots__ = ("finish", "pieces", "texts", "token_count")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.pieces: list[OutputPiece] = []
        """Those with log probabilities, if they were asked for."""
        self.token_count = 0
        self.finish: EndReason | None = None

    def add(self, piece: OutputPiece) -> None:
        """Takes the next piece."""
        self.texts.append(piece.text)
        self.token_count += len(piece.token_ids)
        if piece.logprobs or piece.prompt_logprobs:
            self.pieces.append(piece._replace(token_ids=(), text=""))
        self.finish = piece.finish

    @property
    def mean_logprob(self) -> float:
        """By which the best of several choices is known."""
        values = [one.logprob for piece in self.pieces for one in piece.logprobs]
        return sum(values) / len(values) if values else 0.0

    @property
    def _whole_piece(self) -> OutputPiece:
        logprobs = [one for piece in self.pieces for one in piece.logprobs]
        of_prompt = [one for piece in self.pieces for one in piece.prompt_logprobs]
        return OutputPiece(0, 0, (), "", logprobs, self.finish, of_prompt)

    def completion(self, index: int, echo: str, logprobs: CompletionLogprobs | None) -> dict[str, Any]:
        """As a choice of a completion."""
        assert self.finish is not None
        return {
            "index": index,
            "text": echo + "".join(self.texts),
            "logprobs": None if logprobs is None else logprobs.of(self._whole_piece),
            "finish_reason": finish_name(self.finish),
        }

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    def chat(
        self, index: int, logprobs: ReportedLogprobs | None, message: dict[str, Any], finish: str
    ) -> dict[str, Any]:
        """As a choice of a chat answer."""
        return {
            "index": index,
            "message": message,
            "logprobs": None if logprobs is None else logprobs.for_chat(self._whole_piece),
            "finish_reason": finish,
        }


def whole_answer(words: Words, head: AnswerHead, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> bytes:
    """The document of a whole answer."""
    return document(
        {
            "id": head.answer_id,
            "object": words.whole,
            "created": head.created_s,
            "model": head.model,
            "choices": list(choices),
            "usage": usage,
        }
    )
