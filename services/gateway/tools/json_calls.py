"""Reads tool calls out of JSON while it arrives: the name as soon as it is whole, then the arguments piece by piece.

Arguments go to the client as the model wrote them, but for values that the tool's schema gives another type: those are
held until they are whole. Arguments that come before the name wait for it. Arguments that the model wrote as a string
of JSON are what the string spells.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import regex

from services.gateway.tools.argument_types import ToolTypes
from services.gateway.tools.call_shapes import CallShape
from services.gateway.tools.json_walker import JsonWalker, Path, StepKind, decoded_string
from services.gateway.tools.region_values import tag_value

NO_ARGUMENTS = "{}"


class Named(NamedTuple):
    """A call begins."""

    name: str


class Arguments(NamedTuple):
    """More of its arguments."""

    text: str


CallEvent = Named | Arguments


class CallArguments:
    """The text of the arguments of one call, on its way to the client."""

    def __init__(self, tool: str, types: ToolTypes) -> None:
        self._tool = tool
        self._types = types
        self._walker = JsonWalker(lambda path: len(path) <= 1)
        self._kind = ""
        self._held: list[str] | None = None
        self._held_starts = ""

    def feed(self, text: str) -> str:
        """What can be told of it now."""
        self._kind = self._kind or text[:1]
        if self._kind == '"':
            # The value is a string, and what it spells is only known when it is whole.
            self._held = [*(self._held or ()), text]
            return ""
        if self._kind != "{":
            return text
        return self._cast(text)

    def finish(self) -> str:
        """The rest, at the end of the arguments."""
        text, self._held = "".join(self._held or ()), None
        return decoded_string(text) if self._kind == '"' else text

    def _cast(self, text: str) -> str:
        told: list[str] = []
        for step in self._walker.feed(text):
            if step.mark is StepKind.TEXT:
                if self._held is None:
                    told.append(step.text)
                elif self._held or step.text[0] in self._held_starts:
                    self._held.append(step.text)
                else:
                    # A number, a name or an object is what it is.
                    self._held = None
                    told.append(step.text)
            elif step.path:
                if step.mark is StepKind.BEGIN:
                    self._held_starts = self._types.may_change(self._tool, step.path[0])
                    self._held = [] if self._held_starts else None
                elif self._held is not None:
                    told.append(self._in_type(step.path[0], "".join(self._held)))
                    self._held = None
        return "".join(told)

    def _in_type(self, parameter: str, text: str) -> str:
        try:
            given = json.loads(text)
        except ValueError:
            return text
        value = self._types.cast(self._tool, parameter, given)
        return text if value == given and type(value) is type(given) else json.dumps(value, ensure_ascii=False)


class TagCalls:
    """The call in a region with a tag for each argument: each argument is told when its tag is whole."""

    def __init__(self, name: str, options: Mapping[str, Any], types: ToolTypes) -> None:
        self._name = name
        self._options = options
        self._types = types
        self._pattern = regex.compile(options["tag_pattern"], regex.DOTALL)
        self._text = ""
        self._at = 0
        self._told = 0

    def begin(self) -> list[CallEvent]:
        """What the opening tells."""
        return [Named(self._name)]

    def feed(self, text: str) -> list[CallEvent]:
        """What the next piece of the region tells."""
        self._text += text
        # A match at the end of what is known may become a longer one.
        return list(self._tags(len(self._text) - 1))

    def finish(self) -> list[CallEvent]:
        """What the region's end tells."""
        told = list(self._tags(len(self._text)))
        return [*told, Arguments("}" if self._told else NO_ARGUMENTS)]

    def _tags(self, until: int) -> Iterator[CallEvent]:
        for match in self._pattern.finditer(self._text, self._at):
            if match.end() > until:
                return
            self._at = match.end()
            key = match.group("key")
            value = self._types.cast(self._name, key, tag_value(match.groupdict().get("value"), self._options))
            lead = ", " if self._told else "{"
            self._told += 1
            yield Arguments(f"{lead}{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}")


class JsonCalls:
    """The calls in the JSON of one region. `rest` is set where it turns out to hold none, or no more: the text from
    there on; `has_named` tells which.
    """

    def __init__(self, shape: CallShape, captures: Mapping[str, str], types: ToolTypes) -> None:
        self._shape = shape
        self._types = types
        self._captured = None if shape.captured_name is None else captures.get(shape.captured_name, "")
        wanted = {shape.item, *((*shape.item, *one) for one in (shape.name, *shape.arguments) if one)}
        self._walker = JsonWalker(wanted.__contains__, shape.separators)
        self._handlers: dict[StepKind, Callable[[Path], None]] = {StepKind.BEGIN: self._begin, StepKind.END: self._end}
        self._events: list[CallEvent] = []
        self._name: str | None = None
        self._name_text: list[str] | None = None
        self._arguments: CallArguments | None = None
        self._waiting: list[str] | None = None
        self._in_item = False
        self._in_arguments = False
        self._is_done = False
        self.has_named = False
        self.rest: str | None = None

    def feed(self, text: str) -> list[CallEvent]:
        """What the next piece of the region tells."""
        if self.rest is not None:
            self.rest += text
            return []
        for step in self._walker.feed(text):
            self._step(step.mark, step.path, step.text)
        if self.rest is None and self._walker.unread is not None:
            self.rest = self._walker.unread
        return self._taken()

    def finish(self) -> list[CallEvent]:
        """What the region's end tells."""
        for step in self._walker.finish():
            self._step(step.mark, step.path, step.text)
        if self._in_arguments and self._arguments is not None:
            self._tell(self._arguments.finish())
        if not self.has_named and self.rest is None:
            self.rest = ""
        return self._taken()

    @property
    def is_within(self) -> bool:
        """Whether a call was begun and did not end."""
        return self._in_item and self._name is not None

    def _taken(self) -> list[CallEvent]:
        events, self._events = self._events, []
        return events

    def _step(self, mark: StepKind, path: Path | None, text: str) -> None:
        if self.rest is not None or path is None:
            return
        if mark is not StepKind.TEXT:
            self._handlers[mark](path)
        if self._in_arguments and mark is StepKind.TEXT:
            self._argue(text)
        elif self._name_text is not None and mark is StepKind.TEXT:
            self._name_text.append(text)

    def _begin(self, path: Path) -> None:
        inner = path[len(self._shape.item) :]
        if path == self._shape.item:
            self._in_item, self._is_done = True, False
            self._name, self._arguments, self._waiting = None, None, None
            if self._captured is not None:
                self._name_is(self._captured)
        if inner == self._shape.name and inner and self._name is None:
            self._name_text = []
        elif inner in self._shape.arguments and not self._is_done:
            self._in_arguments = True

    def _end(self, path: Path) -> None:
        inner = path[len(self._shape.item) :]
        if self._name_text is not None and inner == self._shape.name:
            text, self._name_text = "".join(self._name_text), None
            self._name_is(decoded_string(text) if text.startswith('"') else "")
        elif self._in_arguments and inner in self._shape.arguments:
            self._in_arguments, self._is_done = False, True
            if self._arguments is not None:
                self._tell(self._arguments.finish())
        if path == self._shape.item and self.rest is None:
            self._in_item = False
            if self._name is None:
                self.rest = ""
            elif not self._is_done:
                self._tell(NO_ARGUMENTS)

    def _name_is(self, name: str) -> None:
        if not name or (not self._shape.is_marked and name not in self._types):
            self.rest = ""
            return
        self._name, self.has_named = name, True
        self._events.append(Named(name))
        self._arguments = CallArguments(name, self._types)
        if self._waiting is not None:
            self._tell(self._arguments.feed("".join(self._waiting)))
            if self._is_done:
                self._tell(self._arguments.finish())

    def _argue(self, text: str) -> None:
        if self._arguments is None:
            self._waiting = [*(self._waiting or ()), text]
        else:
            self._tell(self._arguments.feed(text))

    def _tell(self, text: str) -> None:
        if text:
            self._events.append(Arguments(text))
