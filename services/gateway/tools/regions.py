"""Parts an answer into the regions of a response template while it arrives.

At any time the text belongs to one region: to an open field, or to the field without an opening, or, if there is none,
to nothing. In an open field only its closing counts. Elsewhere any opening begins a field, and the closing of the field
without an opening ends that one. Of several delimiters the one that starts first counts, then the longest, then an
opening. What may be a delimiter, or a longer one, when more text comes is held back; so regions do not depend on how
the text was cut.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from services.gateway.tools.response_template import Delimiter, FieldTemplate, ResponseTemplate

_MOST_BEFORE = 4096
_KEPT_BEFORE = 256
"""Characters before the present place that an expression can look back on."""


class Opened(NamedTuple):
    """A region begins. `delimiter`: the text that opened it."""

    field: FieldTemplate
    delimiter: str
    captures: Mapping[str, str]


class Text(NamedTuple):
    """More text of the open region."""

    text: str


class Closed(NamedTuple):
    """The open region ends with this text in all. `delimiter`: what closed it; empty at the end of the answer."""

    field: FieldTemplate
    body: str
    captures: Mapping[str, str]
    delimiter: str


RegionEvent = Opened | Text | Closed


class _FoundDelimiter(NamedTuple):
    opens: bool
    field: FieldTemplate
    match: Any


class Regions:
    """The regions of one answer. `prompt`: what the answer follows, whose end may be the start of a region; the events
    of that part are in `begun`.
    """

    def __init__(self, template: ResponseTemplate, prompt: str = "") -> None:
        self._template = template
        self._implicit = None if template.implicit is None else template.fields[template.implicit]
        self._openings = [(field, field.opening) for field in template.fields.values() if field.opening is not None]
        self._text = template.answer_start(prompt)
        self._at = 0
        self._field = self._implicit
        self._is_open = False
        self._captures: Mapping[str, str] = {}
        self._body: list[str] = []
        self.begun = list(self._advance(at_end=False)) if self._text else []

    def feed(self, text: str) -> list[RegionEvent]:
        """The events that the next part of the answer makes certain."""
        if self._at > _MOST_BEFORE:
            cut = self._at - _KEPT_BEFORE
            self._text, self._at = self._text[cut:], self._at - cut
        self._text += text
        return list(self._advance(at_end=False))

    def finish(self) -> list[RegionEvent]:
        """The events of the answer's end."""
        return list(self._advance(at_end=True))

    def _advance(self, at_end: bool) -> Iterator[RegionEvent]:
        while True:
            found, certain = self._next(at_end)
            if found is None:
                yield from self._take(certain)
                if at_end:
                    yield from self._close("")
                return
            yield from self._take(found.match.start())
            self._at = found.match.end()
            was_open = self._is_open
            if found.opens:
                yield from self._close("")
                yield self._open(found.field, found.match)
                continue
            yield from self._close(found.match.group())
            if not was_open and not found.match.group():
                # It would be found again here for ever.
                return

    def _next(self, at_end: bool) -> tuple[_FoundDelimiter | None, int]:
        """The next delimiter that is certain, and up to where the text is certain to hold none."""
        best: tuple[tuple[int, int, bool, str], _FoundDelimiter] | None = None
        held = len(self._text)
        for opens, field, delimiter in self._awaited():
            match = delimiter.pattern.search(self._text, self._at, partial=not at_end)
            if match is None:
                continue
            if not at_end and (match.partial or self._may_grow(delimiter, match)):
                held = min(held, match.start())
                continue
            rank = (match.start(), match.start() - match.end(), not opens, field.name)
            if best is None or rank < best[0]:
                best = (rank, _FoundDelimiter(opens, field, match))
        if best is None or (not at_end and best[1].match.start() >= held):
            return None, held
        return best[1], held

    def _awaited(self) -> Iterator[tuple[bool, FieldTemplate, Delimiter]]:
        if self._field is not None and self._field is not self._implicit:
            if self._field.closing is not None:
                yield False, self._field, self._field.closing
            return
        for field, opening in self._openings:
            yield True, field, opening
        if self._implicit is not None and self._implicit.closing is not None:
            yield False, self._implicit, self._implicit.closing

    def _may_grow(self, delimiter: Delimiter, match: Any) -> bool:
        return match.end() == len(self._text) and (match.start() == match.end() or delimiter.grows)

    def _take(self, until: int) -> Iterator[RegionEvent]:
        """Text up to a place."""
        text = self._text[self._at : until]
        self._at = max(self._at, until)
        if not text or self._field is None:
            return
        if not self._is_open:
            self._is_open = True
            yield Opened(self._field, "", {})
        self._body.append(text)
        yield Text(text)

    def _open(self, field: FieldTemplate, match: Any) -> Opened:
        self._field, self._is_open = field, True
        self._captures = {name: text for name, text in match.groupdict().items() if text is not None}
        return Opened(field, match.group(), self._captures)

    def _close(self, delimiter: str) -> Iterator[RegionEvent]:
        if self._field is not None and self._is_open:
            yield Closed(self._field, "".join(self._body), self._captures, delimiter)
        self._field, self._is_open, self._captures, self._body = self._implicit, False, {}, []
