"""An answer under way: the open requests of one call, whose output goes to the client as events or as one document.

Each request (there is one for each prompt) has a listener. A stream passes on what a listener has as it comes; if the
client takes it slowly, the listener's next piece is larger. A whole answer is collected.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from services.domain.errors import FastServeError, NotReadyError, StreamLostError
from services.domain.generation import EndReason, OutputPiece
from services.gateway.driver import RETRY_S
from services.gateway.model_tokenizer import ModelTokenizer
from services.gateway.open_request import Listener
from services.gateway.openai.answer_shapes import (
    CHAT,
    COMMENT,
    DONE,
    EVENTS,
    JSON,
    AnswerHead,
    ChoiceEvents,
    WholeChoice,
    Words,
    finish_name,
    usage_event,
    usage_of,
    whole_answer,
)
from services.gateway.openai.call_answers import CallChoiceWriter, call_finish, whole_message
from services.gateway.openai.logprobs import CompletionLogprobs, EchoedPrompt, ReportedLogprobs
from services.gateway.openai.quiet_streams import QuietStreams
from services.gateway.openai.tool_use import ToolUse
from services.gateway.openai.translation import ClientPaths


class Sink(Protocol):
    """Where an answer goes. `write` waits while the client has too much to take already."""

    async def write(self, data: bytes, content_type: str) -> None: ...


@dataclass(slots=True)
class Part:
    """One prompt of an answer: its open request, the client's names of its fields, the text to echo, and, if there
    are tools, the prompt's text.
    """

    listener: Listener
    paths: ClientPaths
    echo: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """How an answer looks. `kept` of the `made` choices of each prompt are answered; `stop_token_ids` end an output.
    `echoes`: its text begins with the prompt. `tools`: those that it may call.
    """

    words: Words
    model: str
    streams: bool
    includes_usage: bool
    usage_in_every_chunk: bool
    kept: int
    made: int
    has_logprobs: bool
    echoes: bool
    stop_token_ids: frozenset[int]
    tools: ToolUse | None = None


class OpenAnswer:
    """An answer whose requests are open. `send` must be awaited, and closes them; until then `close` does."""

    def __init__(self, parts: Sequence[Part], shape: Shape, tokenizer: ModelTokenizer, quiet: QuietStreams) -> None:
        self._parts = parts
        self._shape = shape
        self._tokenizer = tokenizer
        self._quiet = quiet
        prefix = "chatcmpl" if shape.words is CHAT else "cmpl"
        unique = parts[0].listener.request.request_id.rpartition("-")[2]
        self._head = AnswerHead(f"{prefix}-{unique}", int(time.time()), shape.model)
        self._sent_tokens = 0
        self._last_sent_s = time.monotonic()

    def close(self, reason: EndReason = EndReason.CANCELLED) -> None:
        """Gives up what has not ended."""
        for part in self._parts:
            part.listener.close(reason)

    async def send(self, sink: Sink, deadline_s: float | None) -> None:
        """Sends the answer. `deadline_s` is on the clock of time.monotonic. Raises the error that ends it early."""
        try:
            if self._shape.streams:
                await self._stream(sink)
            else:
                await self._collect(sink)
        finally:
            is_late = deadline_s is not None and time.monotonic() >= deadline_s - 0.05
            self.close(EndReason.DEADLINE if is_late else EndReason.CANCELLED)

    # --- events ------------------------------------------------------------------------------------------------------

    async def _stream(self, sink: Sink) -> None:
        with self._quiet.watched(self):
            await _all([self._stream_part(place, sink) for place in range(len(self._parts))])
        end = DONE
        if self._shape.includes_usage:
            end = usage_event(self._shape.words, self._head, self._usage()) + end
        await sink.write(end, EVENTS)

    def wake_if_quiet(self, now_s: float, quiet_s: float) -> None:
        """Has a comment sent if nothing was for so long."""
        if now_s - self._last_sent_s >= quiet_s:
            self._last_sent_s = 0.0
            for part in self._parts:
                part.listener.wake()

    async def _stream_part(self, place: int, sink: Sink) -> None:
        part, shape = self._parts[place], self._shape
        listener = part.listener
        first_index = place * shape.kept
        has_usage = shape.includes_usage or shape.usage_in_every_chunk
        writers = [
            self._writer(
                part, first_index + choice, ChoiceEvents(shape.words, self._head, first_index + choice, has_usage)
            )
            for choice in range(shape.kept)
        ]
        while not listener.finished:
            piece = self._take(part)
            if piece is not None:
                self._sent_tokens += len(piece.token_ids)
                usage = self._usage_so_far() if shape.usage_in_every_chunk else None
                event = writers[piece.choice].event(piece, usage)
                if event:
                    self._last_sent_s = time.monotonic()
                    await sink.write(event, EVENTS)
            elif self._last_sent_s == 0.0:
                self._last_sent_s = time.monotonic()
                await sink.write(COMMENT, EVENTS)
            else:
                await listener.wait()

    def _writer(self, part: Part, index: int, events: ChoiceEvents) -> "_ChoiceWriter | CallChoiceWriter":
        """What makes the events of one choice."""
        logprobs = self._logprobs(part)
        if self._shape.tools is None:
            return _ChoiceWriter(events, logprobs, part.echo)
        assert not isinstance(logprobs, CompletionLogprobs)
        return CallChoiceWriter(self._shape.tools, part.prompt, self._head.answer_id, index, events, logprobs)

    def _take(self, part: Part) -> OutputPiece | None:
        """The next piece of a request. Raises its error with the client's names, NotReadyError if it was aborted or
        lost: OpenAI's API has no way to resume a stream.
        """
        try:
            taken = part.listener.take()
        except StreamLostError as error:
            raise NotReadyError(error.reason, error.retry_after_s) from None
        except FastServeError as error:
            raise part.paths.refusal(error) from None
        if taken is None:
            return None
        if taken.piece.finish is EndReason.ABORT:
            raise NotReadyError("this gateway is shutting down", RETRY_S)
        return taken.piece

    # --- one document ------------------------------------------------------------------------------------------------

    async def _collect(self, sink: Sink) -> None:
        made = [[WholeChoice() for _ in range(self._shape.made)] for _ in self._parts]
        await _all([self._collect_part(part, made[place]) for place, part in enumerate(self._parts)])
        choices: list[dict[str, Any]] = []
        for part, own in zip(self._parts, made, strict=True):
            if self._shape.kept < self._shape.made:
                own = sorted(own, key=lambda choice: -choice.mean_logprob)[: self._shape.kept]
            choices += [self._choice(part, choice, len(choices) + place) for place, choice in enumerate(own)]
        answer = whole_answer(self._shape.words, self._head, choices, self._usage())
        await sink.write(answer, JSON)

    async def _collect_part(self, part: Part, choices: Sequence[WholeChoice]) -> None:
        while not part.listener.finished:
            piece = self._take(part)
            if piece is None:
                await part.listener.wait()
            else:
                choices[piece.choice].add(piece)

    def _choice(self, part: Part, choice: WholeChoice, index: int) -> dict[str, Any]:
        logprobs = self._logprobs(part)
        if not (isinstance(logprobs, ReportedLogprobs) or (logprobs is None and self._shape.words is CHAT)):
            return choice.completion(index, part.echo, logprobs)
        assert choice.finish is not None
        if self._shape.tools is None:
            message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
            return choice.chat(index, logprobs, message, finish_name(choice.finish))
        message = whole_message(self._shape.tools, part.prompt, choice.text, self._head.answer_id, index)
        return choice.chat(index, logprobs, message, call_finish(choice.finish, "tool_calls" in message))

    # --- both --------------------------------------------------------------------------------------------------------

    def _logprobs(self, part: Part) -> "ReportedLogprobs | CompletionLogprobs | None":
        """What reports the log probabilities of one choice."""
        if not self._shape.has_logprobs:
            return None
        left_out = frozenset[int]() if self._shape.echoes else self._shape.stop_token_ids
        reported = ReportedLogprobs(self._tokenizer, left_out)
        if self._shape.words is CHAT:
            return reported
        prompt = partial(self._echoed, part) if self._shape.echoes else None
        detokenizer = self._tokenizer.detokenizer(())
        return CompletionLogprobs(reported, self._tokenizer, detokenizer, len(part.echo), prompt)

    def _echoed(self, part: Part) -> EchoedPrompt:
        prompt = part.listener.request.choices[0].submission.prompt
        return EchoedPrompt(prompt, part.echo, self._tokenizer.detokenizer(()))

    def _usage(self) -> dict[str, int]:
        usages = [part.listener.request.usage for part in self._parts]
        return usage_of(sum(one.prompt_tokens for one in usages), sum(one.completion_tokens for one in usages))

    def _usage_so_far(self) -> dict[str, int]:
        return usage_of(sum(part.listener.request.prompt_tokens for part in self._parts), self._sent_tokens)


class _ChoiceWriter:
    """Makes the events of one choice of a stream."""

    __slots__ = ("_echo", "_events", "_logprobs")

    def __init__(self, events: ChoiceEvents, logprobs: ReportedLogprobs | CompletionLogprobs | None, echo: str) -> None:
        self._events = events
        self._logprobs = logprobs
        self._echo = echo

    def event(self, piece: OutputPiece, usage: dict[str, int] | None) -> bytes:
        shown = None
        if isinstance(self._logprobs, ReportedLogprobs):
            shown = self._logprobs.for_chat(piece)
        elif self._logprobs is not None:
            shown = self._logprobs.of(piece)
        event = self._events.event(piece, shown, usage)
        if self._echo:
            event, self._echo = self._events.echo(self._echo, usage) + event, ""
        return event


async def _all(steps: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs all at a time. The first that fails ends the others."""
    if len(steps) == 1:
        await steps[0]
        return
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
