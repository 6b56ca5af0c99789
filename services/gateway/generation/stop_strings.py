"""Finds stop strings in a text that arrives in pieces, and holds back what may turn out to be the start of one.

The first stop string is the one completed first or, if the same character completes several, the longest of them. This
does not depend on where the pieces begin and end. One Knuth-Morris-Pratt automaton per stop string goes over the text
once: a character costs O(stop strings), and the longest prefix matched so far is exactly what has to be held back.
"""

from functools import lru_cache


@lru_cache(maxsize=1024)
def _failure(pattern: str) -> tuple[int, ...]:
    """For each prefix of the pattern, the length of its longest proper prefix that is also its suffix."""
    links = [0]
    for character in pattern[1:]:
        length = links[-1]
        while length and pattern[length] != character:
            length = links[length - 1]
        links.append(length + (pattern[length] == character))
    return tuple(links)


def _step(pattern: str, links: tuple[int, ...], matched: int, character: str) -> int:
    """The length of the longest prefix of the pattern that ends at this character; it was `matched` before it."""
    if matched == len(pattern):
        matched = links[-1]
    while matched and pattern[matched] != character:
        matched = links[matched - 1]
    return matched + (pattern[matched] == character)


class StopStrings:
    """Takes text and returns what is certain not to begin a stop string."""

    __slots__ = ("_held", "_matched", "_patterns", "found")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = tuple((pattern, _failure(pattern)) for pattern in dict.fromkeys(patterns))
        self._matched = [0] * len(self._patterns)
        self._held = ""
        self.found = False

    def push(self, piece: str, *, counts: bool = True) -> str:
        """The text that may be shown now. `found` is set once a stop string is complete; the text ends before it.

        If `counts` is false, stop strings completed by this piece are ignored: its token comes before min_tokens.
        """
        assert not self.found, "the text has already ended at a stop string"
        if not self._patterns:
            return piece
        text = self._held + piece
        for at in range(len(self._held), len(text)):
            if self._advance(text[at]) and counts:
                self.found = True
                self._held = ""
                return text[: at + 1 - self._longest_complete()]
        keep = len(text) - self._longest_open()
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """The text still held back, once the text has ended."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> bool:
        complete = False
        for place, (pattern, links) in enumerate(self._patterns):
            matched = _step(pattern, links, self._matched[place], character)
            self._matched[place] = matched
            complete = complete or matched == len(pattern)
        return complete

    def _longest_complete(self) -> int:
        return max(
            len(pattern)
            for (pattern, _), matched in zip(self._patterns, self._matched, strict=True)
            if matched == len(pattern)
        )

    def _longest_open(self) -> int:
        """The number of characters at the end that may be the start of a stop string."""
        longest = 0
        for (pattern, links), matched in zip(self._patterns, self._matched, strict=True):
            longest = max(longest, links[-1] if matched == len(pattern) else matched)
        return longest
