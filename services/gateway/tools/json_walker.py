"""Walks through JSON that arrives in pieces, and says of each piece of text to which value it belongs.

A value has a path: the keys of the objects and a "*" for each list that it lies in. The caller says by their paths
which values it wants to know of; text outside of them belongs to the innermost of them that it lies in, or to none.
Only the structure is checked here, not the spelling of numbers and the like.
"""

import json
import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

MOST_LEVELS = 128

Path = tuple[str, ...]
LIST = "*"

_STRING_STOP = re.compile(r'["\\]')
_SPACE = " \t\r\n"
_OPENERS = {"{": "}", "[": "]"}


class StepKind(Enum):
    """What a step says of a value."""

    BEGIN = "begin"
    TEXT = "text"
    END = "end"


class WalkStep(NamedTuple):
    """A step of the walk. `path` None: text in no value that was asked for."""

    mark: StepKind
    path: Path | None
    text: str = ""


class _Expected(Enum):
    VALUE = "a value"
    VALUE_OR_END = "a value or ]"
    KEY = "a key"
    KEY_OR_END = "a key or }"
    COLON = "a colon"
    NEXT = "a comma or the end"
    STRING = "the rest of a string"
    SCALAR = "the rest of a number or name"


class JsonWalker:
    """A walk through one document; through several if `separators` may stand between them. `unread` is set where the
    text is no JSON: the text from there on.
    """

    def __init__(self, is_wanted: Callable[[Path], bool], separators: str = "") -> None:
        self._is_wanted = is_wanted
        self._separators = separators
        self._path: list[str] = []
        self._closers: list[str] = []
        self._wanted: list[Path] = []
        self._expected = _Expected.VALUE
        self._key: list[str] | None = None
        self._is_escaped = False
        self._steps: list[WalkStep] = []
        self._gathered: list[str] = []
        self.unread: str | None = None

    def feed(self, text: str) -> list[WalkStep]:
        """The steps through the next piece."""
        if self.unread is not None:
            self.unread += text
            return []
        at = 0
        while at < len(text) and self.unread is None:
            at = self._advance(text, at)
        return self._taken()

    def finish(self) -> list[WalkStep]:
        """The steps of the end, which alone ends a number that stands by itself."""
        if self._expected is _Expected.SCALAR and not self._closers:
            self._end_value()
        return self._taken()

    @property
    def is_between(self) -> bool:
        """Whether the walk is between two documents, or behind the last."""
        return not self._closers and self._expected in (_Expected.NEXT, _Expected.VALUE)

    def _taken(self) -> list[WalkStep]:
        self._flush()
        steps, self._steps = self._steps, []
        return steps

    def _flush(self) -> None:
        if self._gathered:
            self._steps.append(
                WalkStep(StepKind.TEXT, self._wanted[-1] if self._wanted else None, "".join(self._gathered))
            )
            self._gathered = []

    def _mark(self, mark: StepKind, path: Path) -> None:
        self._flush()
        self._steps.append(WalkStep(mark, path))

    def _advance(self, text: str, at: int) -> int:
        """Goes on from a place, and returns the next one."""
        if self._expected is _Expected.STRING:
            return self._in_string(text, at)
        character = text[at]
        if self._expected is _Expected.SCALAR:
            if character.isalnum() or character in "+-.":
                self._gathered.append(character)
                return at + 1
            self._end_value()
        if character in _SPACE:
            self._gathered.append(character)
        elif not self._structure(character):
            self.unread = text[at:]
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        ends = False
        if self._is_escaped:
            self._is_escaped, end = False, at + 1
        else:
            stop = _STRING_STOP.search(text, at)
            end = len(text) if stop is None else stop.end()
            self._is_escaped = stop is not None and stop.group() == "\\"
            ends = stop is not None and stop.group() == '"'
        self._gathered.append(text[at:end])
        if self._key is not None:
            self._key.append(text[at:end])
        if ends and self._key is not None:
            self._path[-1] = decoded_string("".join(self._key))
            self._key, self._expected = None, _Expected.COLON
        elif ends:
            self._end_value()
        return end

    def _structure(self, character: str) -> bool:
        """Takes a character outside of strings, numbers and white space. False if it can't stand here."""
        expected = self._expected
        takes_value = expected in (_Expected.VALUE, _Expected.VALUE_OR_END)
        if character in "]}" and self._closers and character == self._closers[-1]:
            if expected in (_Expected.NEXT, _Expected.KEY_OR_END, _Expected.VALUE_OR_END):
                self._gathered.append(character)
                self._closers.pop()
                self._path.pop()
                self._end_value()
                return True
            return False
        if takes_value and character in _OPENERS and len(self._closers) < MOST_LEVELS:
            self._begin_value(character)
            self._closers.append(_OPENERS[character])
            self._path.append(LIST if character == "[" else "")
            self._expected = _Expected.VALUE_OR_END if character == "[" else _Expected.KEY_OR_END
            return True
        if takes_value and (character == '"' or character.isalnum() or character == "-"):
            self._begin_value(character)
            self._expected = _Expected.STRING if character == '"' else _Expected.SCALAR
            return True
        after = self._after(character)
        if after is None:
            return False
        self._gathered.append(character)
        self._expected = after
        if character == '"':
            self._key = [character]
        return True

    def _after(self, character: str) -> _Expected | None:
        """What is expected after a character that is no part of a value; None if it can't stand here."""
        expected = self._expected
        if expected in (_Expected.KEY, _Expected.KEY_OR_END):
            return _Expected.STRING if character == '"' else None
        if expected is _Expected.COLON:
            return _Expected.VALUE if character == ":" else None
        if expected is not _Expected.NEXT:
            return None
        if not self._closers:
            return _Expected.VALUE if character in self._separators else None
        if character != ",":
            return None
        return _Expected.KEY if self._closers[-1] == "}" else _Expected.VALUE

    def _begin_value(self, character: str) -> None:
        path = tuple(self._path)
        if self._is_wanted(path):
            self._mark(StepKind.BEGIN, path)
            self._wanted.append(path)
        self._gathered.append(character)

    def _end_value(self) -> None:
        path = tuple(self._path)
        if self._wanted and self._wanted[-1] == path:
            self._mark(StepKind.END, path)
            self._wanted.pop()
        self._expected = _Expected.NEXT


def decoded_string(text: str) -> str:
    """The string that a text between quotes spells; the text itself if it spells none."""
    try:
        decoded: str = json.loads(text, strict=False)
    except ValueError:
        return text
    return decoded
