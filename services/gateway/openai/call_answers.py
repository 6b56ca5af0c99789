"""Answers with tool calls in OpenAI's shapes: a whole message, and the deltas of a stream, which add up to it."""

import hashlib
from typing import Any

from services.domain.generation import EndReason, OutputPiece
from services.gateway.openai.answer_shapes import ChoiceEvents, finish_name
from services.gateway.openai.logprobs import ReportedLogprobs
from services.gateway.openai.tool_use import ToolUse
from services.gateway.tools.answer_reader import AnswerReader
from services.gateway.tools.call_parts import AnswerPart, AnswerWords, ArgumentsPart, CallBegan

CALLS_FINISH = "tool_calls"
_SHORT_ID_CHARACTERS = 9
_ID_CHARACTERS = 24


def call_id(use: ToolUse, answer_id: str, choice: int, index: int) -> str:
    """The id of a call: it follows from the answer's, which is random."""
    digest = hashlib.sha256(f"{answer_id}/{choice}/{index}".encode()).hexdigest()
    return digest[:_SHORT_ID_CHARACTERS] if use.form.has_short_ids else "call_" + digest[:_ID_CHARACTERS]


def whole_message(use: ToolUse, prompt: str, text: str, answer_id: str, choice: int) -> dict[str, Any]:
    """The assistant's message."""
    reader = use.reader(prompt)
    said: dict[str, str] = {}
    calls: list[dict[str, Any]] = []
    for part in (*reader.push(text), *reader.finish()):
        if isinstance(part, AnswerWords):
            said[part.kind.value] = said.get(part.kind.value, "") + part.text
        elif isinstance(part, CallBegan):
            function = {"name": part.name, "arguments": ""}
            calls.append({"id": call_id(use, answer_id, choice, part.call), "type": "function", "function": function})
        else:
            calls[part.call]["function"]["arguments"] += part.text
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else "", "refusal": None, **said}
    return {**message, "tool_calls": calls} if calls else message


def call_finish(finish: EndReason, has_calls: bool) -> str:
    """The `finish_reason` of a choice."""
    return CALLS_FINISH if has_calls and finish is EndReason.STOP else finish_name(finish)


class CallChoiceWriter:
    """Makes the events of one choice of a stream."""

    def __init__(
        self,
        use: ToolUse,
        prompt: str,
        answer_id: str,
        choice: int,
        events: ChoiceEvents,
        logprobs: ReportedLogprobs | None,
    ) -> None:
        self._use = use
        self._reader: AnswerReader = use.reader(prompt)
        self._answer_id = answer_id
        self._choice = choice
        self._events = events
        self._logprobs = logprobs
        self._has_content = False

    def event(self, piece: OutputPiece, usage: dict[str, int] | None) -> bytes:
        """The events of a piece; empty if it tells nothing yet."""
        parts = self._reader.push(piece.text)
        finish = None
        if piece.finish is not None:
            parts += self._reader.finish()
            finish = call_finish(piece.finish, self._reader.call_count > 0)
        deltas = [self._delta(part) for part in parts]
        if finish is not None and not self._has_content and not self._reader.call_count:
            deltas.append({"content": ""})
        logprobs = None if self._logprobs is None else self._logprobs.for_chat(piece)
        return self._events.deltas(deltas, logprobs, finish, usage)

    def _delta(self, part: AnswerPart) -> dict[str, Any]:
        if isinstance(part, AnswerWords):
            self._has_content = self._has_content or part.kind.value == "content"
            return {part.kind.value: part.text}
        call: dict[str, Any] = {"index": part.call}
        if isinstance(part, ArgumentsPart):
            return {"tool_calls": [{**call, "function": {"arguments": part.text}}]}
        call["id"] = call_id(self._use, self._answer_id, self._choice, part.call)
        return {"tool_calls": [{**call, "type": "function", "function": {"name": part.name, "arguments": ""}}]}
