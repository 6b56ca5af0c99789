"""Reads an answer while it arrives: what is said, what is thought, and the calls.

What it tells of an answer does not depend on how the text was cut, so a streamed answer adds up to the whole one. It is
the message that `parse_response` gives, but for what can't be taken back: text of several places is joined, and where
the text of a region holds no call it is said as it stands.
"""

import json
from collections.abc import Iterator
from typing import Any

from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.call_forms import CallForm
from services.gateway.tools.call_parts import AnswerPart, AnswerWords, ArgumentsPart, CallBegan, WordsKind
from services.gateway.tools.call_shapes import tags_name
from services.gateway.tools.json_calls import NO_ARGUMENTS, Arguments, JsonCalls, Named, TagCalls
from services.gateway.tools.region_values import UnreadableRegionError, value_of
from services.gateway.tools.regions import Closed, Opened, RegionEvent, Regions, Text

CALLS_FIELD = "tool_calls"
_KINDS = {
    "content": WordsKind.CONTENT,
    "reasoning_content": WordsKind.REASONING,
    "reasoning": WordsKind.REASONING,
    "thinking": WordsKind.REASONING,
}


class AnswerReader:
    """Reads one answer. `prompt`: what it follows. Calls beyond `most_calls` are left out."""

    def __init__(self, form: CallForm, types: ToolTypes, prompt: str = "", most_calls: int | None = None) -> None:
        self._form = form
        self._types = types
        self._most_calls = most_calls
        self._regions = Regions(form.template, prompt)
        self._region: _Region = _Region()
        self._calls = 0
        self._early: list[_Told] = []
        """What the prompt's part of an open call tells."""
        for event in self._regions.begun:
            if isinstance(event, Opened):
                self._region = self._opened(event)
                self._early = self._region.begin()
            elif isinstance(event, Closed):
                self._region, self._early = _Region(), []
            elif not isinstance(self._region, _Said):
                self._early += self._region.feed(event.text)

    @property
    def call_count(self) -> int:
        """The calls that were told of."""
        return self._calls if self._most_calls is None else min(self._calls, self._most_calls)

    def push(self, text: str) -> list[AnswerPart]:
        """What the next piece of the answer tells."""
        return list(self._told(self._regions.feed(text)))

    def finish(self) -> list[AnswerPart]:
        """What its end tells."""
        return list(self._told(self._regions.finish()))

    def _told(self, events: list[RegionEvent]) -> Iterator[AnswerPart]:
        early, self._early = self._early, []
        yield from self._all_numbered(early)
        for event in events:
            if isinstance(event, Opened):
                self._region = self._opened(event)
                parts = self._region.begin()
            elif isinstance(event, Text):
                parts = self._region.feed(event.text)
            else:
                parts, self._region = self._region.end(event), _Region()
            yield from self._all_numbered(parts)

    def _all_numbered(self, parts: "list[_Told]") -> Iterator[AnswerPart]:
        for part in parts:
            numbered = self._numbered(part)
            if numbered is not None:
                yield numbered

    def _opened(self, event: Opened) -> "_Region":
        field = event.field
        kind = _KINDS.get(field.name)
        if field.name == CALLS_FIELD:
            group = tags_name(field)
            if group is not None:
                return _TagCalls(TagCalls(event.captures.get(group, ""), field.content_args, self._types))
            if self._form.shape is None:
                return _WholeCalls(event, self._types)
            return _StreamedCalls(event, JsonCalls(self._form.shape, event.captures, self._types))
        if kind is None or field.content != "text" or field.transform is not None:
            return _Region() if kind is None else _Value(kind)
        strips = bool(field.content_args.get("strip", True))
        # White space between calls, and after them, says nothing.
        return _Said(kind, strips_start=strips or (kind is WordsKind.CONTENT and self._calls > 0), strips_end=strips)

    def _numbered(self, part: "_Told") -> AnswerPart | None:
        if isinstance(part, AnswerWords):
            return part
        if isinstance(part, Named):
            self._calls += 1
        if self._most_calls is not None and self._calls > self._most_calls:
            return None
        if isinstance(part, Named):
            return CallBegan(self._calls - 1, _encodable(part.name))
        return ArgumentsPart(self._calls - 1, _encodable(part.text))


def _encodable(text: str) -> str:
    """The text without halves of characters, which JSON can spell and UTF-8 can't."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_Told = AnswerWords | Named | Arguments


class _Region:
    """A region of which nothing is told."""

    def begin(self) -> list[_Told]:
        return []

    def feed(self, text: str) -> list[_Told]:
        return []

    def end(self, region: Closed) -> list[_Told]:
        return []


class _Said(_Region):
    """A region of text."""

    def __init__(self, kind: WordsKind, strips_start: bool, strips_end: bool) -> None:
        self._kind = kind
        self._strips_start = strips_start
        self._strips_end = strips_end
        self._space = ""

    def feed(self, text: str) -> list[_Told]:
        if self._strips_start:
            text = text.lstrip()
            self._strips_start = not text
        if self._strips_end and text:
            shown = (self._space + text).rstrip()
            self._space, text = (self._space + text)[len(shown) :], shown
        return [AnswerWords(self._kind, text)] if text else []


class _Value(_Region):
    """A region whose value is told when it is whole."""

    def __init__(self, kind: WordsKind) -> None:
        self._kind = kind

    def end(self, region: Closed) -> list[_Told]:
        try:
            value = value_of(region)
        except UnreadableRegionError:
            value = region.body
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return [AnswerWords(self._kind, text)] if text else []


class _WholeCalls(_Region):
    """A region with calls that are read when it is whole."""

    def __init__(self, opened: Opened, types: ToolTypes) -> None:
        self._delimiter = opened.delimiter
        self._types = types

    def end(self, region: Closed) -> list[_Told]:
        try:
            value = self._types.cast_calls(value_of(region))
        except UnreadableRegionError:
            value = None
        told: list[_Told] = []
        for call in value if isinstance(value, list) else [value]:
            function: Any = call.get("function") if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name:
                arguments = function.get("arguments", {})
                shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                told += [Named(name), Arguments(shown or NO_ARGUMENTS)]
        return told or [AnswerWords(WordsKind.CONTENT, self._delimiter + region.body + region.delimiter)]


class _TagCalls(_Region):
    """A region with a call whose arguments are tags."""

    def __init__(self, calls: TagCalls) -> None:
        self._calls = calls

    def begin(self) -> list[_Told]:
        return [*self._calls.begin()]

    def feed(self, text: str) -> list[_Told]:
        return [*self._calls.feed(text)]

    def end(self, region: Closed) -> list[_Told]:
        return [*self._calls.finish()]


class _StreamedCalls(_Region):
    """A region with calls that are told of while it arrives."""

    def __init__(self, opened: Opened, calls: JsonCalls) -> None:
        self._delimiter = opened.delimiter
        self._calls = calls
        self._unsaid: list[str] | None = []
        """The text so far, as long as it may turn out to hold no call."""
        self._rest_said = 0
        self._has_calls = True

    def feed(self, text: str) -> list[_Told]:
        return [*self._calls.feed(text), *self._not_calls(text)]

    def end(self, region: Closed) -> list[_Told]:
        return [*self._calls.finish(), *self._not_calls("", region.delimiter)]

    def _not_calls(self, text: str, delimiter: str = "") -> list[_Told]:
        """The part of the text that is no call, once that is known."""
        if self._unsaid is not None:
            self._unsaid.append(text)
        if self._calls.has_named:
            self._unsaid = None
        rest = self._calls.rest
        if rest is None or self._calls.is_within:
            return []
        if self._unsaid is not None:
            said, self._unsaid, self._has_calls = self._delimiter + "".join(self._unsaid), None, False
        else:
            said = rest[self._rest_said :]
        self._rest_said = len(rest)
        said += "" if self._has_calls else delimiter
        return [AnswerWords(WordsKind.CONTENT, said)] if said else []
